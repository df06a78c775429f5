"""LitServe with its dynamic batching, at /predict; a row is base64 in JSON, which its decoder reads."""

import base64
import os

import litserve
from batch_model import BatchModel


class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = BatchModel()

    def decode_request(self, request):
        return self.model.row(base64.b64decode(request["row"]))

    def batch(self, inputs):
        return inputs

    def predict(self, rows):
        return self.model.run(rows)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"scores": output.tolist()}


if __name__ == "__main__":
    api = Api(
        max_batch_size=int(os.environ["COMPARISON_BATCH"]),
        batch_timeout=float(os.environ["COMPARISON_WAIT_MS"]) / 1000,
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(os.environ["COMPARISON_PORT"]), num_api_servers=1, generate_client_file=False)
