"""mosec with its dynamic batching: a row's raw bytes in, the scores' raw bytes out, at /inference."""

import os

import mosec
from batch_model import BatchModel


class Worker(mosec.Worker):
    def __init__(self):
        self.model = BatchModel()

    def deserialize(self, data):
        return self.model.row(data)

    def forward(self, data):
        return list(self.model.run(data))

    def serialize(self, data):
        return data.tobytes()


if __name__ == "__main__":
    server = mosec.Server()
    # In mosec a wait is a whole number of milliseconds from 1 on.
    wait_ms = max(1, round(float(os.environ["COMPARISON_WAIT_MS"])))
    server.append_worker(Worker, num=1, max_batch_size=int(os.environ["COMPARISON_BATCH"]), max_wait_time=wait_ms)
    server.run()
