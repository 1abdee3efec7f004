"""Data sets that others have published: each loader downloads its files once and checks them every time."""
