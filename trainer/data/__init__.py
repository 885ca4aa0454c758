"""From texts and token files to micro-batches on the device.

Read `samples` (the order in which samples are seen) and `loading` first. `tokenfile` (.bin) and `textfile` (JSON lines, and
the standard library's source) read tokens; `text` and `tokenizer` make token files, `checkdata` and `fileformat` find what is wrong with a file.
"""
