"""The verbs, a module each: options in, a call, what is printed out."""
