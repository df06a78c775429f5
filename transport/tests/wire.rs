//! Properties of the wire format: what is written is read as it was, a frame that has not come
//! whole is waited for, and no bytes make the decoder panic or read outside the frame.

use bytemuck::Pod;
use proptest::prelude::*;
use symphony_transport::message::{BatchEntry, BatchHeader, Class, Completion, Request, Response};
use symphony_transport::wire::{
    Accepted, Alive, BackendCompletion, CloseCode, Closing, EncodeFault, ExportedClass, FrameKind,
    GpuPresence, GrantedBatch, HEADER_BYTES, Hello, MAX_PAYLOAD_BYTES, OfferedModel, Payload, RdmaOffer,
    TensorData, TensorWrite, Text, TimeProbe, decode,
};
use symphony_transport::{Nanos, slab::SlotId};

/// A record of random bytes; its fields are then made valid.
fn pod<T: Pod + std::fmt::Debug>() -> impl Strategy<Value = T> {
    proptest::collection::vec(any::<u8>(), size_of::<T>())
        .prop_map(|bytes| bytemuck::pod_read_unaligned(&bytes))
}

fn many<S: Strategy>(one: S) -> impl Strategy<Value = Vec<S::Value>> {
    proptest::collection::vec(one, 1..20)
}

fn frame(payload: Payload<'_>) -> Vec<u8> {
    let mut buffer = vec![0; 16 << 10];
    let length = payload.encode(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// The rows of one request, or its cancellation.
fn request() -> impl Strategy<Value = Vec<Request>> {
    (pod::<Request>(), 0..Class::COUNT as u8, 0u16..5, any::<bool>()).prop_map(
        |(drawn, class, rows, takes_back)| {
            let class = Class::new(class).unwrap();
            let rows_after = if takes_back { 0 } else { rows };
            let (id, takes_back) = (drawn.id >> 16, u32::from(takes_back));
            let row = |row| Request {
                id,
                class,
                takes_back,
                row,
                rows_after: rows_after - row,
                is_again: drawn.is_again & 1,
                padding: [0; 4],
                ..drawn
            };
            (0..=rows_after).map(row).collect()
        },
    )
}

fn hello() -> impl Strategy<Value = Vec<u8>> {
    (pod::<Hello>(), 1..=3u32, ".{0,30}", proptest::collection::vec(pod::<OfferedModel>(), 0..9)).prop_map(
        |(drawn, role, name, models)| {
            let heartbeat_every = drawn.heartbeat_every + Nanos(1);
            let (incarnation, first_gpu) = (drawn.incarnation | 1, drawn.first_gpu >> 1);
            let (gpus, tensors, name) = (drawn.gpus >> 1, 1 + drawn.tensors % 2, Text::new(&name));
            let head = Hello { incarnation, heartbeat_every, role, first_gpu, gpus, tensors, name, ..drawn };
            frame(Payload::Hello(head, (&models[..]).into()))
        },
    )
}

fn completion() -> impl Strategy<Value = BackendCompletion> {
    pod::<BackendCompletion>().prop_map(|drawn| {
        let Completion { started, finished, .. } = drawn.completion;
        let completion = Completion {
            started: started.min(finished),
            finished: started.max(finished),
            ..drawn.completion
        };
        BackendCompletion { incarnation: drawn.incarnation | 1, number: drawn.number | 1, completion }
    })
}

/// A valid frame of any kind.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let entry = || pod::<BatchEntry>().prop_map(|drawn| BatchEntry { id: drawn.id >> 16, ..drawn });
    let response = || {
        (pod::<Response>(), 0..7u32).prop_map(|(drawn, ending)| Response {
            id: drawn.id >> 16,
            ending,
            reserved: [0; 3],
            ..drawn
        })
    };
    let gpu = || {
        (pod::<GpuPresence>(), 1..=3u32).prop_map(|(drawn, presence)| GpuPresence {
            incarnation: drawn.incarnation | 1,
            presence,
            ..drawn
        })
    };
    let bytes = || proptest::collection::vec(any::<u8>(), 0..100);
    let sized = |bytes: &[u8]| bytes.len() as u32;
    prop_oneof![
        hello(),
        any::<u64>().prop_map(|drawn| frame(Payload::Accepted(Accepted { incarnation: drawn | 1 }))),
        ".{0,99}".prop_map(|text| frame(Payload::Closing(Closing::new(CloseCode::Leaving, &text)))),
        many(request()).prop_map(|requests| frame(Payload::Requests((&requests.concat()[..]).into()))),
        many(response()).prop_map(|records| frame(Payload::Responses((&records[..]).into()))),
        (pod::<GrantedBatch>(), many(entry())).prop_map(|(drawn, entries)| {
            let head = GrantedBatch { incarnation: drawn.incarnation | 1, ..drawn };
            frame(Payload::Batch(head, (&entries[..]).into()))
        }),
        many(completion()).prop_map(|records| frame(Payload::Completions((&records[..]).into()))),
        many(gpu()).prop_map(|records| frame(Payload::Gpus((&records[..]).into()))),
        pod().prop_map(|head| frame(Payload::Alive(head))),
        pod().prop_map(|head| frame(Payload::TimeProbe(head))),
        pod().prop_map(|head| frame(Payload::TimeAnswer(head))),
        pod().prop_map(|head| frame(Payload::Credit(head))),
        pod().prop_map(|head| frame(Payload::TensorRead(head))),
        (any::<u64>(), bytes()).prop_map(move |(read, bytes)| {
            frame(Payload::TensorData(TensorData { read, outcome: 1, bytes: sized(&bytes) }, &bytes))
        }),
        (pod::<TensorWrite>(), bytes()).prop_map(move |(drawn, bytes)| {
            frame(Payload::TensorWrite(TensorWrite { bytes: sized(&bytes), ..drawn }, &bytes))
        }),
        (pod::<RdmaOffer>(), 0..5u32, many(pod::<ExportedClass>())).prop_map(|(drawn, mtu, classes)| {
            let RdmaOffer { queue_pair, packet, lid, reads, .. } = drawn;
            let (queue_pair, packet, lid) = (queue_pair >> 8, packet >> 8, lid >> 16);
            let (mtu, reads) = (256 << mtu, reads % 255 + 1);
            let head = RdmaOffer { queue_pair, packet, lid, mtu, reads, reserved: 0, ..drawn };
            frame(Payload::Rdma(head, (&classes[..]).into()))
        }),
        pod().prop_map(|head| frame(Payload::Delays(head))),
    ]
}

/// Decodes bytes and checks what holds of all that can be read: written again it is the same.
fn decode_and_check(bytes: &[u8]) -> Option<FrameKind> {
    let (payload, length) = decode(bytes).ok()??;
    assert!(length <= bytes.len());
    let again = frame(payload);
    // The frame may be a Closing of another version.
    assert_eq!((&again[..4], &again[6..]), (&bytes[..4], &bytes[6..length]));
    Some(payload.kind())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_is_read_as_it_was_written_wherever_it_lies(
        frames in many(any_frame()),
        shift in 0usize..8,
    ) {
        let stream = [&vec![0; shift][..], &frames.concat()].concat();
        let mut rest = &stream[shift..];
        for frame in &frames {
            let (_, length) = decode(rest).unwrap().unwrap();
            prop_assert_eq!(length, frame.len());
            prop_assert!(decode_and_check(rest).is_some());
            rest = &rest[length..];
        }
        prop_assert_eq!(decode(rest), Ok(None));
    }

    #[test]
    fn a_frame_that_has_not_come_whole_is_waited_for(frame in any_frame(), cut in any::<prop::sample::Index>()) {
        prop_assert_eq!(decode(&frame[..cut.index(frame.len())]), Ok(None));
    }

    #[test]
    fn altered_frames_are_read_or_refused(
        frame in any_frame(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in proptest::option::of(0u32..200),
    ) {
        let mut frame = frame;
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Some(length) = length {
            frame[8..12].copy_from_slice(&length.to_le_bytes());
        }
        decode_and_check(&frame);
    }

    #[test]
    fn any_bytes_behind_a_valid_header_are_read_or_refused(
        kind in 0u16..18,
        payload in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let length = payload.len() as u32;
        let header = [b"SYMF", &1u16.to_le_bytes()[..], &kind.to_le_bytes(), &length.to_le_bytes(), &[0; 4]];
        decode_and_check(&[&header.concat()[..], &payload].concat());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_and_check(&bytes);
    }
}

/// The sentence with which a frame is refused.
fn refusal(frame: &[u8]) -> String {
    decode(frame).unwrap_err().to_string()
}

#[test]
fn a_refusal_says_what_is_wrong_and_what_would_be_right() {
    let alive = frame(Payload::Alive(Alive { number: 1, sent: Nanos(2) }));
    let with = |at: usize, byte: u8| {
        let mut frame = alive.clone();
        frame[at] = byte;
        refusal(&frame)
    };
    assert_eq!(
        refusal(b"GET / HTTP/1.1\r\n\r\n"),
        "a frame begins with the bytes `SYMF`, not GET : the peer speaks another protocol"
    );
    assert_eq!(
        with(4, 1),
        "the peer speaks version 1 of the protocol, this host version 2: run the same release on both"
    );
    assert_eq!(with(6, 18), "a frame of kind 18: there are 1 to 17");
    assert_eq!(with(8, 15), "Alive: 15 bytes of payload, where there should be 16");
    assert_eq!(with(11, 1), "Alive: 16777232 bytes of payload, the most are 1048576");
    assert_eq!(with(12, 9), "Alive, record 0: reserved is 9, where it should be 0");

    let requests = [Request::default(), Request { rows_after: 1, ..Request::default() }];
    assert_eq!(
        refusal(&frame(Payload::Requests((&requests[..]).into()))),
        "Requests, record 1: rows_after is 1, where it should be 0 in a frame's last record"
    );
    let no_entries: &[BatchEntry] = &[];
    let head = GrantedBatch::new(1, BatchHeader::default());
    assert_eq!(
        refusal(&frame(Payload::Batch(head, no_entries.into()))),
        "Batch: 48 bytes of payload, where there should be 48 and 1 or more times 16"
    );
}

#[test]
fn a_class_or_an_ending_that_does_not_exist_is_refused() {
    let mut requests = frame(Payload::Requests((&[Request::default()][..]).into()));
    requests[HEADER_BYTES + std::mem::offset_of!(Request, class)] = 4;
    assert_eq!(refusal(&requests), "Requests, record 0: class is 4, where it should be 0 to 3");
    let responses = [Response { ending: 7, ..Response::default() }];
    assert_eq!(
        refusal(&frame(Payload::Responses((&responses[..]).into()))),
        "Responses, record 0: ending is 7, where it should be 0 to 6"
    );
}

#[test]
fn a_frame_for_which_there_is_no_room_writes_nothing() {
    let probe = Payload::TimeProbe(TimeProbe { sent: Nanos(1) });
    let mut short = [7; HEADER_BYTES + 7];
    assert_eq!(probe.encode(&mut short), Err(EncodeFault::NoRoom { needed: 24, room: 23 }));
    assert_eq!(short, [7; HEADER_BYTES + 7]);

    let bytes = vec![0; MAX_PAYLOAD_BYTES];
    let head = TensorWrite { slot: SlotId::default(), offset: 0, bytes: bytes.len() as u32 };
    let fault = Payload::TensorWrite(head, &bytes).encode(&mut vec![0; 2 * MAX_PAYLOAD_BYTES]);
    assert_eq!(fault, Err(EncodeFault::TooLong { bytes: MAX_PAYLOAD_BYTES + 16 }));
}

#[test]
fn a_closing_of_another_version_can_be_read() {
    let closing = Closing::new(CloseCode::Mismatch, "this host speaks version 9");
    let mut bytes = frame(Payload::Closing(closing));
    bytes[4] = 9;
    assert_eq!(decode(&bytes), Ok(Some((Payload::Closing(closing), bytes.len()))));
}

#[test]
fn a_batch_is_granted_as_its_header_says() {
    let header = BatchHeader { batch: 5, size: 3, latest: Nanos::MAX, ..BatchHeader::default() };
    assert_eq!(GrantedBatch::new(1, header).header(3), header);
}

#[test]
fn every_kind_has_a_code_and_a_code_its_kind() {
    for (code, kind) in (1..).zip(FrameKind::ALL) {
        assert_eq!((kind as u16, FrameKind::from_code(code)), (code, Some(kind)));
    }
    assert_eq!((FrameKind::from_code(0), FrameKind::from_code(18)), (None, None));
}
