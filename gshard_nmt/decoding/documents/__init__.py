"""Documents that are translated as a whole: catalogues, subtitles, pages. Their structure stays."""
