"""What the terminal shows: tables and sentences, a module for each noun."""
