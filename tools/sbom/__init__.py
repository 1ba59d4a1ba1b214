"""
The bills of materials of both images, from what they pin and what they hold: `make sbom`.
"""
