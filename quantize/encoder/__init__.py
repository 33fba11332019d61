"""Classifiers built from a text encoder: BERT-like layers, a mean over the text, a head fitted on labelled texts.

Start at build.build_classifier. The release's graphs take input_ids and attention_mask, int64 [B, S], and
give logits, float32 [B, L], in the order of the manifest's labels.
"""
