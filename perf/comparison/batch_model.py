"""The model as mosec and LitServe run it: one ONNX Runtime session with one thread."""

import os

import numpy
import onnxruntime


class BatchModel:
    """Runs rows that arrived as raw little-endian floats."""

    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["COMPARISON_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.shape = self.session.get_inputs()[0].shape[1:]
        # Each batch size is run once before the first request, as our server does at start.
        for rows in range(1, int(os.environ["COMPARISON_BATCH"]) + 1):
            self.run([numpy.zeros(self.shape, numpy.float32)] * rows)

    def row(self, data):
        return numpy.frombuffer(data, "<f4").reshape(self.shape)

    def run(self, rows):
        return self.session.run(None, {"image": numpy.stack(rows)})[0]
