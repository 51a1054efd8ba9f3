//! Summaries of runs for people.

use super::links;
use super::program::{Cast, Report, run};
use super::shape::Shape;
use std::fmt::Write;

/// The fanouts that are compared.
const FANOUTS: [u16; 5] = [4, 8, 16, 32, 128];

/// Prints a table that compares every fanout over all links: the latency and the traffic of a cast.
pub fn compare(shape: Shape, print: impl Fn(&str)) {
    print("| fanout | links | depth | last actor | gathered | frames | KiB |");
    print("| --- | --- | --- | --- | --- | --- | --- |");
    for fanout in FANOUTS {
        for links in links::ALL {
            let report = run(Shape { fanout, links, deaths: 0, ..shape });
            let Cast { reached_ns, gathered_ns, load, .. } = report.steady;
            print(&format!(
                "| {fanout} | {} | {} | {} | {} | {} | {} |",
                links.name,
                depth(shape.hosts, u32::from(fanout)),
                ms(reached_ns),
                ms(gathered_ns),
                load.busiest_host.frames,
                load.busiest_host.bytes / 1024,
            ));
        }
    }
}

/// The number of hops of a cast to the last host.
fn depth(hosts: u32, fanout: u32) -> u32 {
    let (mut depth, mut level, mut covered) = (0, 1_u64, 1_u64);
    while covered < u64::from(hosts) {
        level *= u64::from(fanout);
        covered += level;
        depth += 1;
    }
    depth
}

/// Describes one run in a few lines.
pub fn describe(report: &Report) -> String {
    let Report { shape, memory, .. } = report;
    let mut text = String::new();
    let each = |bytes: usize| bytes / shape.actors as usize;
    let [actors, procs, hosts] = report.died;
    let lines = [
        format!(
            "{} actors on {} hosts, links {}, fanout {}, seed {}",
            shape.actors, shape.hosts, shape.links.name, shape.fanout, shape.seed
        ),
        format!("  boot            {} until the last link", ms(report.booted_ns)),
        format!("  spawn           {}", line(&report.spawn)),
        format!("  first cast      {}", line(&report.first)),
        format!("  later casts     {}", line(&report.steady)),
        format!(
            "  memory          {} bytes an actor when idle ({} of them the checks'), {} at most",
            each(memory.idle),
            each(memory.oracle),
            each(memory.peak),
        ),
        format!("  died            {actors} actors, {procs} processes, {hosts} hosts"),
    ];
    for one in lines {
        text += &one;
        text.push('\n');
    }
    for cast in &report.with_failures {
        let [actor, proc, host, other] = cast.faults;
        let _ = writeln!(
            text,
            "  cast meanwhile  {} gathered; faults: {actor} of actors, {proc} of processes, \
             {host} of hosts, {other} others",
            ms(cast.gathered_ns)
        );
    }
    let _ = write!(
        text,
        "  {} events in {:.3} s of virtual time, trace hash {:016x}",
        report.events,
        report.took.as_secs_f64(),
        report.hash
    );
    text
}

fn line(cast: &Cast) -> String {
    let load = &cast.load;
    format!(
        "{} to the last actor, {} gathered; {} frames and {} KiB between hosts, at most {} frames \
         and {} KiB one way on a link, {} frames and {} KiB out of a host",
        ms(cast.reached_ns),
        ms(cast.gathered_ns),
        load.total.frames,
        load.total.bytes / 1024,
        load.busiest.frames,
        load.busiest.bytes / 1024,
        load.busiest_host.frames,
        load.busiest_host.bytes / 1024,
    )
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}
