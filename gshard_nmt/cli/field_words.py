"""The words of other systems for our flags and settings, for a flag that does not exist."""

import ast
import dataclasses
from collections.abc import Collection, Sequence

_SAME = {
    "steps": "max_steps max_update max_updates train_steps num_steps num_train_steps iterations",
    "linear_warmup_steps": "warmup warmup_updates",
    "rows": "batch_size batch train_batch_size per_device_train_batch_size bs",
    "source_length": "max_len max_length max_seq_length seq_len max_source_length",
    "encoder_layers": "layers num_layers n_layers num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "model_dim": "d_model hidden_size embed_dim",
    "hidden_dim": "d_ff ffn_dim",
    "heads": "num_heads attention_heads",
    "experts": "num_experts moe_experts",
    "source_vocabulary": "vocab_size vocab",
    "checkpoint_every": "save_steps save_every save_interval save_checkpoint_steps",
    "dev_every": "eval_steps eval_every valid_steps validate_interval eval_interval",
    "log_every": "log_interval logging_steps report_every",
    "patience": "early_stopping",
    "microbatches": "update_freq accum_count gradient_accumulation_steps",
    "config": "arch model",
    "workdir": "output_dir save_dir out_dir model_dir checkpoint_dir run_dir model model_path path",
    "data": "data_dir data_path dataset train_data",
    "init_from": "finetune pretrained from_pretrained train_from load",
    "shape": "gpus num_gpus n_gpu gpu devices num_devices device n_devices",
    "num_processes": "world_size nproc_per_node nnodes num_nodes",
    "process_id": "rank node_rank local_rank",
    "coordinator": "master_addr master_address dist_url",
    "beam": "beam_size num_beams",
    "nbest": "n_best num_return_sequences",
    "lang": "source_lang src_lang src",
    "target": "target_lang tgt_lang tgt",
    "residual_dropout": "dropout",
}
"""The words that others use, by the name of our flag or setting."""
_ADVICE = {
    "resume resume_from_checkpoint restore continue": "the same command resumes the run in --workdir",
    "epochs max_epoch max_epochs num_train_epochs": "a run is counted in steps: --gin 'Train.steps = "
    "10000'; gshard-data plan says how often that shows each language",
    "lr learning_rate": "use --gin 'Optimizer.learning_rate = 1.0', the factor of the whole schedule; 1 "
    "is usual",
    "fp16 bf16 mixed_precision dtype": "use --gin \"Model.activation_dtype = 'bfloat16'\"",
    "lang langs lang_pairs source_lang target_lang": "use --gin \"Data.languages = ['de', 'fr']\"",
}
"""What to do in place of a flag of training, by the words that others use."""
_TRAINING = ("Train", "Optimizer", "Model", "Data", "Mesh")
"""The classes of settings whose fields are meant, in this order."""
_DECODING = ("Decode", "Mesh")


def our_words(flag: str, arguments: Sequence[str], known: Collection[str]) -> str:
    """Returns what to give in place of a flag that does not exist; "" if we do not know it."""
    word = flag.replace("-", "_").lower()
    names = [name for name, words in _SAME.items() if word in words.split()] or [word]
    answers = [f"use --{name}" for name in names if name in known]
    if "config" in known:
        answers += [advice for words, advice in _ADVICE.items() if word in words.split()]
    if "gin" in known:
        answers += [_setting(flag, name, arguments, known) for name in names]
    return next(filter(None, answers), "")


def _setting(flag: str, name: str, arguments: Sequence[str], known: Collection[str]) -> str:
    from gshard_nmt.settings.config import CLASSES

    for class_name in _TRAINING if "config" in known else _DECODING:
        for field in dataclasses.fields(CLASSES[class_name]):
            if field.name == name:
                value = _value(flag, arguments, field.default)
                return f"use --gin '{class_name}.{name} = {value!r}'"
    return ""


def _value(flag: str, arguments: Sequence[str], default: object) -> object:
    """Returns the value that the user gives to a flag, if it is of the right type, or its default."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    places = [place for place, word in enumerate(words) if word.lstrip("-") == flag]
    try:
        value = ast.literal_eval(words[places[0] + 1])
    except (IndexError, ValueError, SyntaxError):
        return default
    if isinstance(default, tuple) and type(value) is int:
        value = (value,)
    fits = type(value) is type(default) or (type(value) is int and isinstance(default, float))
    return value if fits else default
