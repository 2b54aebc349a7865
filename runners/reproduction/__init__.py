"""Reproductions of published results: claims, and one package per paper."""
