"""Parts of the generator that reads torchlint's tables about torch from an installed torch."""
