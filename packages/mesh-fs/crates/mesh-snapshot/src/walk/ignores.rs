//! What is left out, by patterns in gitignore's language.

use crate::error::SnapshotError;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// What patterns are relative to: the directory that they are asked about.
const HERE: &str = ".";

/// The patterns that hold in a directory: those of it, then those of the directories around it.
#[derive(Debug)]
pub(crate) struct Ignores {
    patterns: Gitignore,
    /// Bytes of the path of the directory that has the patterns, and of the slash behind it.
    prefix: usize,
    around: Option<Arc<Self>>,
}

impl Ignores {
    /// The patterns of the options.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, SnapshotError> {
        let lines = patterns.iter().map(String::as_str);
        Ok(Self { patterns: compile(lines, || "the options".to_owned())?, prefix: 0, around: None })
    }

    /// Adds the patterns of a file in the directory with this path.
    pub(crate) fn with(
        around: &Arc<Self>,
        directory: &[u8],
        text: &[u8],
        place: &Path,
    ) -> Result<Arc<Self>, SnapshotError> {
        let text = String::from_utf8_lossy(text);
        let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
        let patterns = compile(lines, || place.display().to_string())?;
        let prefix = if directory.is_empty() { 0 } else { directory.len() + 1 };
        Ok(Arc::new(Self { patterns, prefix, around: Some(Arc::clone(around)) }))
    }

    /// Whether something is left out. `path` is in the directory that these patterns hold in, and
    /// no directory around it is left out.
    pub(crate) fn leave_out(&self, path: &[u8], is_directory: bool) -> bool {
        let mut ignores = Some(self);
        let mut verdict = None;
        while let Some(Self { patterns, prefix, around }) = ignores {
            let inside = Path::new(OsStr::from_bytes(&path[*prefix..]));
            let found = match patterns.matched(inside, is_directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            };
            // Those of the options come last here, but they have the last word.
            verdict = if around.is_none() { found.or(verdict) } else { verdict.or(found) };
            ignores = around.as_deref();
        }
        verdict.unwrap_or(false)
    }
}

fn compile<'a>(
    lines: impl Iterator<Item = &'a str>,
    place: impl Fn() -> String,
) -> Result<Gitignore, SnapshotError> {
    let mut builder = GitignoreBuilder::new(HERE);
    let bad = |pattern: &str, why: ignore::Error| SnapshotError::Pattern {
        pattern: pattern.to_owned(),
        place: place(),
        why: why.to_string(),
    };
    for line in lines {
        builder.add_line(None, line).map_err(|why| bad(line, why))?;
    }
    builder.build().map_err(|why| bad("", why))
}
