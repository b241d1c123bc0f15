"""Tables, pages and files of search results."""
