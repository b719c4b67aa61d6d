"""Claims about exports in other libraries' hands."""
