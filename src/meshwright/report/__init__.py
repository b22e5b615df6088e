"""What a person or a script gets to see: tables, drawings, sentences, JSON, a torch script."""
