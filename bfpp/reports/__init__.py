"""Tables, pictures and notes that commands print or write."""
