"""Reports: tables, drawings, sentences, JSON, HTML, a torch script."""
