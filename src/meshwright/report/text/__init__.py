"""Terminal reports: tables and sentences, a module for each noun."""
