"""What text is before it has numbers: normal forms, scripts, vocabularies."""
