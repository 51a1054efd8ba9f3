//! Exclusion of files by patterns in the syntax of `.gitignore`.

use crate::error::SnapshotError;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Base of the patterns. Paths are made relative to the directory of the patterns.
const HERE: &str = ".";

/// The patterns that apply in a directory: its own patterns, then the patterns of its parents.
#[derive(Debug)]
pub(crate) struct Ignores {
    patterns: Gitignore,
    /// Length of the path of the directory with these patterns, including the slash after it.
    prefix: usize,
    around: Option<Arc<Self>>,
}

impl Ignores {
    /// Creates the patterns of the options.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, SnapshotError> {
        let lines = patterns.iter().map(String::as_str);
        Ok(Self { patterns: compile(lines, || "the options".to_owned())?, prefix: 0, around: None })
    }

    /// Adds the patterns of an ignore file in this directory.
    pub(crate) fn with(
        around: &Arc<Self>,
        directory: &[u8],
        text: &[u8],
        location: &Path,
    ) -> Result<Arc<Self>, SnapshotError> {
        let text = String::from_utf8_lossy(text);
        let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
        let patterns = compile(lines, || location.display().to_string())?;
        let prefix = if directory.is_empty() { 0 } else { directory.len() + 1 };
        Ok(Arc::new(Self { patterns, prefix, around: Some(Arc::clone(around)) }))
    }

    /// Returns whether a path is excluded.
    ///
    /// These patterns must be the patterns of its directory, and no parent directory may be
    /// excluded.
    pub(crate) fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let mut ignores = Some(self);
        let mut verdict = None;
        while let Some(Self { patterns, prefix, around }) = ignores {
            let inside = Path::new(OsStr::from_bytes(&path[*prefix..]));
            let found = match patterns.matched(inside, is_directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            };
            // The patterns of the options are last in this chain, but take precedence over all
            // others.
            verdict = if around.is_none() { found.or(verdict) } else { verdict.or(found) };
            ignores = around.as_deref();
        }
        verdict.unwrap_or(false)
    }
}

fn compile<'a>(
    lines: impl Iterator<Item = &'a str>,
    location: impl Fn() -> String,
) -> Result<Gitignore, SnapshotError> {
    let mut builder = GitignoreBuilder::new(HERE);
    let bad = |pattern: &str, why: ignore::Error| SnapshotError::Pattern {
        pattern: pattern.to_owned(),
        location: location(),
        why: why.to_string(),
    };
    for line in lines {
        builder.add_line(None, line).map_err(|why| bad(line, why))?;
    }
    builder.build().map_err(|why| bad("", why))
}
