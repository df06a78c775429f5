//! The tables of docs/protocol.md are those of the code: each record's fields with their offsets
//! and sizes, the kinds of frames and the codes. `engine/fuzz/wire_seeds.py`, a client in another
//! language, has written a frame of each kind from that document alone: they are read.

use std::collections::BTreeSet;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use symphony_transport::message::{BatchEntry, Completion, Ending, Request, Response};
use symphony_transport::wire::{
    Accepted, Alive, BackendCompletion, CloseCode, Closing, CreditGrant, ExportedClass, FrameHeader,
    FrameKind, GpuPresence, GrantedBatch, Hello, HostRole, LandedAnswer, MAX_PAYLOAD_BYTES, MeasuredDelays,
    OfferedModel, Presence, RdmaOffer, ReadOutcome, TensorData, TensorRead, TensorWay, TensorWrite,
    TimeAnswer, TimeProbe, VERSION, decode,
};

/// A record's heading, and its fields as the first three cells of their rows.
struct Layout {
    heading: String,
    rows: Vec<String>,
}

/// The size of the field that `project` reads.
fn bytes_of_field<T, F>(_project: impl FnOnce(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layout {
    ($name:literal, $record:ty: $($($field:ident).+),+) => {
        Layout {
            heading: format!("### {}, {} bytes", $name, size_of::<$record>()),
            rows: vec![$(format!(
                "| {} | {} | {} |",
                offset_of!($record, $($field).+),
                bytes_of_field(|record: &$record| &record.$($field).+),
                stringify!($($field).+).replace(' ', ""),
            )),+],
        }
    };
}

fn layouts() -> Vec<Layout> {
    let completion = size_of::<Completion>();
    assert_eq!(offset_of!(BackendCompletion, completion) + completion, size_of::<BackendCompletion>());
    vec![
        layout!("Header", FrameHeader: magic, version, kind, length, reserved),
        layout!("Hello", Hello: config, incarnation, heartbeat_every, role, number, first_gpu, gpus, max_batch,
            credits, tensors, name),
        layout!("OfferedModel", OfferedModel: digest, model, max_batch, input_bytes, output_bytes),
        layout!("Accepted", Accepted: incarnation),
        layout!("Closing", Closing: code, reserved, sentence),
        layout!("Request", Request: id, slot, arrival, deadline, reserve, queue, takes_back, row, rows_after,
            frontend, class, application, is_again, again_us, padding),
        layout!("Response", Response: id, slot, batched, started, finished, ending, batch_size, gpu, reserved),
        layout!("GrantedBatch", GrantedBatch: incarnation, batch, exec_at, latest, duration, model, gpu),
        layout!("BatchEntry", BatchEntry: id, slot),
        layout!("BackendCompletion", BackendCompletion: incarnation, number, completion.batch,
            completion.started, completion.finished, completion.model, completion.gpu),
        layout!("GpuPresence", GpuPresence: incarnation, since, gpu, presence),
        layout!("Alive", Alive: number, sent),
        layout!("TimeProbe", TimeProbe: sent),
        layout!("TimeAnswer", TimeAnswer: sent, received, answered),
        layout!("CreditGrant", CreditGrant: total),
        layout!("TensorRead", TensorRead: read, slot, offset, bytes),
        layout!("TensorData", TensorData: read, outcome, bytes),
        layout!("TensorWrite", TensorWrite: slot, offset, bytes),
        layout!("RdmaOffer", RdmaOffer: gid, landing, landing_bytes, landing_key, queue_pair, packet, lid, mtu,
            reads, reserved),
        layout!("ExportedClass", ExportedClass: slots, states, slot_bytes, count, frontend, number, slots_key,
            states_key),
        layout!("LandedAnswer", LandedAnswer: response, at, bytes, offset, given_back, reserved),
        layout!("MeasuredDelays", MeasuredDelays: way, fetch, fetch_per_kib),
    ]
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    fs::read_to_string(path).unwrap()
}

/// The first `cells` cells of each row of the table below a heading.
fn table(document: &str, heading: &str, cells: usize) -> Vec<String> {
    let lines = document.lines().skip_while(|line| *line != heading).skip(1);
    let section = lines.take_while(|line| !line.starts_with('#'));
    let rows: Vec<String> = section
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .skip(1)
        .map(|line| line.split_inclusive('|').take(cells + 1).collect())
        .collect();
    assert!(!rows.is_empty(), "docs/protocol.md has no table below `{heading}`");
    rows
}

#[test]
fn every_record_is_described_byte_by_byte() {
    let document = document();
    let layouts = layouts();
    for Layout { heading, rows } in &layouts {
        assert_eq!(&table(&document, heading, 3), rows, "{heading}");
        let bytes: usize =
            rows.iter().map(|row| row.split(" | ").nth(1).unwrap().parse::<usize>().unwrap()).sum();
        assert!(heading.ends_with(&format!(", {bytes} bytes")), "{heading}: a field is missing");
    }
    let described = document.lines().filter(|line| line.starts_with("### ") && line.ends_with(" bytes"));
    assert_eq!(described.count(), layouts.len());
}

#[test]
fn every_kind_and_every_code_is_described() {
    let document = document();
    let row = |code: u32, name: String| format!("| {code} | {name} |");
    let kinds = FrameKind::ALL.map(|kind| row(kind as u32, kind.to_string()));
    assert_eq!(table(&document, "### Kinds", 2), kinds);
    let codes = |of: fn(u32) -> Option<String>| -> Vec<String> {
        (0..100).filter_map(|code| Some(row(code, of(code)?))).collect()
    };
    let debug = [
        ("role", codes(|code| Some(format!("{:?}", HostRole::from_code(code)?)))),
        ("tensors", codes(|code| Some(format!("{:?}", TensorWay::from_code(code)?)))),
        ("code", codes(|code| Some(format!("{:?}", CloseCode::from_code(code)?)))),
        ("ending", codes(|code| Some(format!("{:?}", Ending::from_code(code)?)))),
        ("presence", codes(|code| Some(format!("{:?}", Presence::from_code(code)?)))),
        ("outcome", codes(|code| Some(format!("{:?}", ReadOutcome::from_code(code)?)))),
    ];
    for (field, rows) in debug {
        assert_eq!(table(&document, &format!("### Codes of {field}"), 2), rows);
    }
}

#[test]
fn the_limits_are_those_of_the_code() {
    let document = document();
    assert!(document.contains(&format!("bytes of the payload, at most {MAX_PAYLOAD_BYTES} |")));
    let most = MAX_PAYLOAD_BYTES - size_of::<TensorData>();
    assert!(document.contains(&format!("how many to read, at most {most} |")));
    assert!(document.contains(&format!("| 4 | 2 | version | {VERSION} |")));
}

/// The version, and the digest of the frames that it is of: a change of a record, of a kind or of a
/// code is another digest, and takes another version, since hosts of two releases must not take one
/// for the other.
const FRAMES_OF_VERSION: (u16, u64) = (2, 0xe704_472d_899b_fde1);

#[test]
fn frames_do_not_change_without_another_version() {
    let described = document();
    let codes = described.lines().filter(|line| line.starts_with("### Codes of ")).map(|heading| {
        let rows = table(&described, heading, 2);
        (heading.to_owned(), rows)
    });
    let kinds = ("### Kinds".to_owned(), table(&described, "### Kinds", 3));
    let records = layouts().into_iter().map(|Layout { heading, rows }| (heading, rows));
    let lines =
        records.chain(codes).chain([kinds]).flat_map(|(heading, rows)| [vec![heading], rows].concat());
    // FNV-1a, of 64 bits.
    let digest = lines.flat_map(String::into_bytes).fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(
        (VERSION, digest),
        FRAMES_OF_VERSION,
        "a frame has changed: raise VERSION, unless it was raised since the last release, and note both here"
    );
}

#[test]
fn frames_of_a_client_in_another_language_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/fuzz/seeds/wire");
    let mut kinds = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let (payload, length) = decode(&bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len(), "{}", path.display());
        kinds.insert(payload.kind() as u16);
    }
    assert_eq!(
        kinds.len(),
        FrameKind::ALL.len(),
        "kinds {kinds:?}: engine/fuzz/wire_seeds.py writes one of each"
    );
}
