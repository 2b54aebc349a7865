"""Drawing of clusters with Pillow: a canvas, boxes for engines, and plots over time. It is loaded when one renders."""
