"""What a run is made of, and the files that say so."""
