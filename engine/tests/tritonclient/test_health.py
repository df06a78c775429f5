"""Health and reflection, with gRPC's own clients."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
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


def shape(message):
    """Returns what a message is on the wire: its fields, and the values of its enums."""
    fields = {field.name: (field.number, field.type, field.is_repeated) for field in message.fields}
    return fields, {enum.name: {value.name: value.number for value in enum.values} for enum in message.enum_types}


def test_the_health_service_is_that_of_grpcs_package(channel):
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    ours = pool.FindServiceByName("grpc.health.v1.Health")
    package = health_pb2.DESCRIPTOR.services_by_name["Health"]
    assert {"Check", "Watch"} <= set(package.methods_by_name)
    for name, method in package.methods_by_name.items():
        mine = ours.methods_by_name[name]
        assert (mine.client_streaming, mine.server_streaming) == (method.client_streaming, method.server_streaming)
        for one, other in [(mine.input_type, method.input_type), (mine.output_type, method.output_type)]:
            assert (one.full_name, shape(one)) == (other.full_name, shape(other))


def test_a_list_has_the_status_of_every_service(channel):
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["List"]
    ask = channel.unary_unary(
        "/grpc.health.v1.Health/List",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    listed = {name: of.status for name, of in ask(GetMessageClass(method.input_type)()).statuses.items()}
    assert {"", SERVICE, "wide", "wide/1"} <= set(listed)
    assert set(listed.values()) == {HealthCheckResponse.SERVING}
