"""Health and reflection, with gRPC's own clients."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "inference.GRPCInferenceService"


@pytest.fixture
def channel(addresses):
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        yield channel


def test_the_server_and_its_models_have_a_status(channel):
    health = HealthStub(channel)
    for service in ["", SERVICE, "wide", "wide/1"]:
        assert health.Check(HealthCheckRequest(service=service)).status == HealthCheckResponse.SERVING
        watch = health.Watch(HealthCheckRequest(service=service))
        assert next(watch).status == HealthCheckResponse.SERVING
        watch.cancel()
    for service in ["nobody", "wide/2"]:
        with pytest.raises(grpc.RpcError) as error:
            health.Check(HealthCheckRequest(service=service))
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(HealthCheckRequest(service=service))
        assert next(watch).status == HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_the_services_describe_themselves(channel):
    described = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(described.get_services())
    service = DescriptorPool(described).FindServiceByName(SERVICE)
    infer = service.methods_by_name["ModelInfer"]
    assert "raw_input_contents" in infer.input_type.fields_by_name
