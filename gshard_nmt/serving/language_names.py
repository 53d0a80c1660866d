"""English names of languages, for clients that show a list of languages to people."""

_NAMES = """
aa Afar; ab Abkhazian; af Afrikaans; ak Akan; am Amharic; an Aragonese; ar Arabic; as Assamese;
ast Asturian; av Avaric; ay Aymara; az Azerbaijani; ba Bashkir; be Belarusian; bg Bulgarian;
bho Bhojpuri; bm Bambara; bn Bengali; bo Tibetan; br Breton; bs Bosnian; ca Catalan; ce Chechen;
ceb Cebuano; ch Chamorro; ckb Central Kurdish; co Corsican; cr Cree; crh Crimean Tatar;
cs Czech; csb Kashubian; cv Chuvash; cy Welsh; da Danish; de German; dsb Lower Sorbian;
dv Dhivehi; dz Dzongkha; ee Ewe; el Greek; en English; eo Esperanto; es Spanish; et Estonian;
eu Basque; fa Persian; ff Fulah; fi Finnish; fil Filipino; fj Fijian; fo Faroese; fr French;
frp Arpitan; fur Friulian; fy Western Frisian; ga Irish; gd Scottish Gaelic; gl Galician;
gn Guarani; gu Gujarati; gv Manx; ha Hausa; haw Hawaiian; he Hebrew; hi Hindi;
hne Chhattisgarhi; hr Croatian; hsb Upper Sorbian; ht Haitian; hu Hungarian; hy Armenian;
ia Interlingua; id Indonesian; ie Interlingue; ig Igbo; ilo Iloko; io Ido; is Icelandic;
it Italian; iu Inuktitut; ja Japanese; jv Javanese; ka Georgian; kab Kabyle; ki Kikuyu;
kk Kazakh; kl Kalaallisut; km Khmer; kn Kannada; ko Korean; kok Konkani; ks Kashmiri;
ku Kurdish; kw Cornish; ky Kyrgyz; la Latin; lb Luxembourgish; lg Ganda; li Limburgish;
ln Lingala; lo Lao; lt Lithuanian; lv Latvian; mai Maithili; mg Malagasy; mhr Meadow Mari;
mi Maori; mk Macedonian; ml Malayalam; mn Mongolian; mr Marathi; ms Malay; mt Maltese;
my Burmese; nah Nahuatl; nap Neapolitan; nb Norwegian Bokmål; nds Low German; ne Nepali;
nl Dutch; nn Norwegian Nynorsk; no Norwegian; nr South Ndebele; nso Northern Sotho; nv Navajo;
ny Nyanja; oc Occitan; om Oromo; or Odia; os Ossetic; pa Punjabi; pap Papiamento; pl Polish;
ps Pashto; pt Portuguese; qu Quechua; rm Romansh; rn Rundi; ro Romanian; ru Russian;
rw Kinyarwanda; sa Sanskrit; sc Sardinian; scn Sicilian; sco Scots; sd Sindhi; se Northern Sami;
sg Sango; sh Serbo-Croatian; si Sinhala; sk Slovak; sl Slovenian; sm Samoan; sn Shona;
so Somali; sq Albanian; sr Serbian; ss Swati; st Southern Sotho; su Sundanese; sv Swedish;
sw Swahili; szl Silesian; ta Tamil; te Telugu; tg Tajik; th Thai; ti Tigrinya; tk Turkmen;
tl Tagalog; tn Tswana; to Tongan; tr Turkish; ts Tsonga; tt Tatar; tw Twi; ty Tahitian;
ug Uyghur; uk Ukrainian; ur Urdu; uz Uzbek; ve Venda; vi Vietnamese; vo Volapük; wa Walloon;
war Waray; wo Wolof; xh Xhosa; yi Yiddish; yo Yoruba; yue Cantonese; za Zhuang; zh Chinese;
zu Zulu
"""

NAMES = dict(entry.strip().split(" ", 1) for entry in _NAMES.split(";"))
"""English names by the first part of a BCP 47 tag."""


def language_name(tag: str) -> str:
    """Returns the English name of a language: "Chinese (CN)" for zh-CN; the tag if it has no name."""
    language, _, rest = tag.partition("-")
    name = NAMES.get(language.lower())
    if name is None:
        return tag
    return f"{name} ({rest})" if rest else name
