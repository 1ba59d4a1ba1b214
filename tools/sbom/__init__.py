"""
The bills of materials of the images, from what they pin and what they hold: `make sbom`.
"""
