//! Greetings on the wire are those in `docs/protocol/greeting.md`.

use mesh_runtime::node::{Effect, Node, NodeConfig};
use mesh_wire::frame::Frame;
use mesh_wire::id::{JobId, ProcId};
use std::path::Path;

const HERE: ProcId = ProcId::new(0, 0);
const THERE: ProcId = ProcId::new(1, 0);

fn node(me: ProcId, incarnation: u32) -> Node {
    Node::new(NodeConfig {
        me,
        incarnation,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 20,
    })
}

fn golden() -> Vec<u8> {
    let document = "../../../../docs/protocol/greeting.md";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = std::fs::read_to_string(path).expect("the document is there");
    let (_, block) = text.split_once("```golden hello\n").expect("it has the block");
    let (block, _) = block.split_once("```").expect("the block has an end");
    let byte = |hex| u8::from_str_radix(hex, 16).expect("golden bytes are hexadecimal");
    block.split_whitespace().map(byte).collect()
}

fn sent(node: &mut Node) -> Vec<Frame> {
    let transmitted = |effect| match effect {
        Effect::Transmit { frame, .. } => Some(frame),
        _ => None,
    };
    node.effects().filter_map(transmitted).collect()
}

#[test]
fn a_hello_has_the_documented_bytes_and_gets_a_welcome() {
    let (mut caller, mut called) = (node(THERE, 3), node(HERE, 0));
    caller.dial(HERE);
    caller.connected(HERE);
    let hello = sent(&mut caller).pop().expect("it greets");
    let written = [hello.head.encode(hello.tail.len()).as_slice(), &hello.tail].concat();
    assert_eq!(written, golden());
    let link = called.accepted_remote();
    called.receive(link, hello);
    assert_eq!(called.peer_of(link), Some(THERE));
    assert_eq!(sent(&mut called).len(), 1, "it is welcome");
}
