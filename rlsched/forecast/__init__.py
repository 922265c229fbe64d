"""When jobs will start and end: futures of the live state, corrected by what came of earlier ones."""
