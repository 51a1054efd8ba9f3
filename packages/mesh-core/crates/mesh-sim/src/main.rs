//! Runs worlds (`mesh-sim --seeds 200`), or repeats a single one (`mesh-sim --seed 17 --trace`).

use mesh_sim::heap::{self, Heap};
use mesh_sim::scale::{self, Shape, links::Links, table};
use mesh_sim::{Options, Report, regressions, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[global_allocator]
static HEAP: Heap = Heap;

const USAGE: &str = "usage: mesh-sim [--seeds N] [--seed S] [--procs P] [--steps K] [--trace]
       mesh-sim --actors A [--hosts H] [--fanout F] [--links L] [--deaths D] [--heartbeat T]
                [--uneven] [--seeds N] [--seed S] [--table]

  --seeds N   run N worlds, from seed S (default 0) on
  --seed S    without --seeds: run this world alone and print its trace hash
  --procs P   processes in a world (default 1000)
  --steps K   things that its programs do (default 1500)
  --trace     print every event

Large worlds:
  --actors A     cast to this many actors
  --hosts H      on this many hosts (default: 8 actors on each)
  --fanout F     hosts that a host passes a cast on to (default 16)
  --links L      flat (50 us, the default), racks, thin or flight
  --deaths D     actors, processes and hosts that die during casts (default 1000)
  --heartbeat T  seconds between signs of life of a host (default 1)
  --uneven       send some hosts more than others before
  --table        compare fanouts and links instead";

struct Arguments {
    seeds: Option<u64>,
    options: Options,
    /// The shape of a large world; if it is set, large worlds run instead.
    shape: Option<Shape>,
    is_table: bool,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let is_one = arguments.seeds.is_none();
    let failed = match arguments.shape {
        Some(shape) => run_large(shape, &arguments),
        None if is_one => run_one(arguments.options),
        None => run_many(&arguments),
    };
    let resident_mb = heap::resident_peak_kb().unwrap_or(0) / 1024;
    eprintln!("took {:.1} s, {resident_mb} MiB resident at most", begun.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seeds: None, options: Options::new(0), shape: None, is_table: false };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            value.parse().map_err(|_| format!("{word} {value}: not a number"))
        };
        let small = |number: u64| u32::try_from(number).map_err(|_| format!("{number}: too big"));
        match word.as_str() {
            "--seeds" => arguments.seeds = Some(number()?),
            "--seed" => arguments.options.seed = number()?,
            "--procs" => arguments.options.procs = small(number()?)?.max(4),
            "--steps" => arguments.options.steps = small(number()?)?,
            "--trace" => arguments.options.is_traced = true,
            "--actors" => {
                let (deaths, heartbeat_s) = (1000, 1);
                let shape = Shape::new(small(number()?)?.max(2));
                arguments.shape = Some(Shape { deaths, heartbeat_s, ..shape });
            }
            "--table" => arguments.is_table = true,
            "--uneven" => large(&mut arguments, &word)?.is_uneven = true,
            "--links" => {
                let name = words.next().unwrap_or_default();
                let links = Links::named(&name).ok_or(format!("{name}: no such links"))?;
                large(&mut arguments, &word)?.links = links;
            }
            "--hosts" => large(&mut arguments, &word)?.hosts = small(number()?)?.max(1),
            "--fanout" => large(&mut arguments, &word)?.fanout = small(number()?)?.max(1) as u16,
            "--deaths" => large(&mut arguments, &word)?.deaths = small(number()?)?,
            "--heartbeat" => large(&mut arguments, &word)?.heartbeat_s = small(number()?)?,
            _ => return Err(format!("{word}: unknown")),
        }
    }
    Ok(arguments)
}

fn large<'a>(arguments: &'a mut Arguments, word: &str) -> Result<&'a mut Shape, String> {
    arguments.shape.as_mut().ok_or(format!("{word}: pass --actors first"))
}

fn run_large(shape: Shape, arguments: &Arguments) -> usize {
    if arguments.is_table {
        table::compare(shape, |line| println!("{line}"));
        return 0;
    }
    let first = arguments.options.seed;
    let seeds: Vec<u64> = (first..first + arguments.seeds.unwrap_or(1)).collect();
    over_all(&seeds, |seed| {
        let report = scale::run(Shape { seed: *seed, ..shape });
        println!("{}", table::describe(&report));
        let violation = report.violations.first()?;
        Some(format!("seed {seed}: {violation}"))
    })
}

/// Runs all items on every core. Prints each failure and returns the number of failures.
fn over_all<T: Sync>(all: &[T], failure_of: impl Fn(&T) -> Option<String> + Sync) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(all.len()) {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(failure) = failure_of(one) {
                        println!("{failure}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    report_count(all.len(), failed.into_inner())
}

fn run_one(options: Options) -> usize {
    let report = run(options);
    for violation in &report.violations {
        println!("seed {}: {violation}", options.seed);
    }
    let Report { events, took, tally, hash, .. } = &report;
    println!("{events} events in {:.3} s of virtual time; {tally:?}", took.as_secs_f64());
    println!("trace hash {hash:016x}");
    report_count(1, usize::from(!report.violations.is_empty()))
}

fn run_many(arguments: &Arguments) -> usize {
    let Options { seed: first, procs, steps, is_traced } = arguments.options;
    let count = arguments.seeds.unwrap_or(0);
    let known = regressions().map(|options| Options { is_traced, ..options });
    let fresh = (first..first + count).map(|seed| Options { seed, procs, steps, is_traced });
    let all: Vec<Options> = known.chain(fresh).collect();
    if is_traced {
        let failures = all.iter().filter_map(|options| failure_of(*options));
        let failed = failures.inspect(|failure| println!("{failure}")).count();
        return report_count(all.len(), failed);
    }
    over_all(&all, |options| failure_of(*options))
}

/// Runs a world. A panic of a state machine counts as a failure.
fn failure_of(options: Options) -> Option<String> {
    let Options { seed, procs, steps, .. } = options;
    let what = match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(report) => report.violations.first()?.clone(),
        Err(_) => "panicked".to_owned(),
    };
    Some(format!(
        "seed {seed}: {what}\n  \
         cargo run -p mesh-sim --release -- --seed {seed} --procs {procs} --steps {steps}"
    ))
}

fn report_count(all: usize, failed: usize) -> usize {
    println!("{} passed, {failed} failed", all - failed);
    failed
}
