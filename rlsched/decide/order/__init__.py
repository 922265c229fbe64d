"""What a queue goes by: keys, the Gittins index, predictions that follow what is seen."""
