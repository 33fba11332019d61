"""A ready-made ONNX classifier of the user's own becomes a release: its large weights nested, the rest as it is.

Start at build.build_ready_made. The folder holds model.onnx (or onnx/model.onnx), tokenizer.json, and the labels
in config.json (id2label) or, one a line, in labels.txt.
"""
