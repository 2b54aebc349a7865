"""The site: pages written from classes, schemas and result files, and where they lie."""
