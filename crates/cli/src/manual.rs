//! Man pages: those of verbs come from the definition of the command line, packetloom-chain(5) from the schema of chain files, and
//! packetloom-rules(5) from docs/rules.md.

use std::fmt::Write;

use clap::Command;
use serde_json::Value;

use crate::failure::EXIT_CODES;

/// The pages about files, by the names that "packetloom man" has for them.
pub(crate) const FILES: [&str; 2] = ["chain", "rules"];

/// A chain and rules for the pages to show.
const CHAIN: &str = include_str!("../../../examples/chains/edge-filter.toml");
const RULES: &str = include_str!("../../../examples/chains/edge-filter.rules");

/// A page in the language of man(7).
#[derive(Default)]
struct Page(String);

impl Page {
    fn new(name: &str, section: u8, summary: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Self::default();
        let title = name.to_uppercase();
        page.request(&format!(".TH {title} {section} \"\" \"packetloom {version}\" \"Packetloom\""));
        page.heading("NAME");
        page.text(&format!("{name} - {summary}"));
        page
    }

    /// A line that is an instruction.
    fn request(&mut self, line: &str) {
        self.0 += line;
        self.0.push('\n');
    }

    fn heading(&mut self, text: &str) {
        self.request(&format!(".SH \"{}\"", escaped(text).replace('"', "\\(dq")));
    }

    fn subheading(&mut self, text: &str) {
        self.request(&format!(".SS \"{}\"", escaped(text).replace('"', "\\(dq")));
    }

    /// Lines of text, with Markdown's marks for code and weight.
    fn text(&mut self, text: &str) {
        let text = inline(text);
        // What a line begins with may be taken for an instruction.
        let guard = if text.starts_with(['.', '\'']) { "\\&" } else { "" };
        self.request(&format!("{guard}{text}"));
    }

    fn paragraph(&mut self, text: &str) {
        self.request(".PP");
        self.text(text);
    }

    fn tagged(&mut self, tag: &str, text: &str) {
        self.request(".TP");
        self.text(tag);
        self.text(text);
    }

    /// Text as it stands.
    fn code(&mut self, code: &str) {
        self.request(".PP\n.RS 4\n.nf");
        for line in code.lines() {
            let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            self.request(&format!("{guard}{}", escaped(line)));
        }
        self.request(".fi\n.RE");
    }

    /// What exit codes mean, and other pages.
    fn end(mut self, see_also: &[&str]) -> String {
        self.heading("EXIT STATUS");
        for (code, what) in EXIT_CODES {
            self.tagged(&format!("**{code}**"), what);
        }
        self.heading("SEE ALSO");
        self.text(&see_also.iter().map(|page| format!("**{page}**")).collect::<Vec<_>>().join(", "));
        self.0
    }
}

/// Text whose letters stand for themselves.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('`', "\\(ga").replace('\'', "\\(aq")
}

/// A line of Markdown: links by their text, code and strong text in bold.
fn inline(text: &str) -> String {
    let mut rest = text;
    let mut out = String::new();
    while let Some(at) = rest.find(['`', '[', '*']) {
        out += &escaped(&rest[..at]);
        rest = &rest[at..];
        let (mark, end, close) = match rest.as_bytes()[0] {
            b'`' => (1, rest[1..].find('`'), 1),
            b'*' if rest.starts_with("**") => (2, rest[2..].find("**"), 2),
            b'[' => (1, rest[1..].find("]("), 0),
            _ => (1, None, 0),
        };
        let Some(end) = end else {
            out += &escaped(&rest[..mark]);
            rest = &rest[mark..];
            continue;
        };
        let inner = &rest[mark..mark + end];
        if rest.starts_with('[') {
            out += &inline(inner);
            let after = &rest[mark + end + 2..];
            rest = after.find(')').map_or("", |close| &after[close + 1..]);
        } else {
            let _ = write!(out, "\\fB{}\\fP", escaped(&inner.replace('`', "")));
            rest = &rest[mark + end + close..];
        }
    }
    out + &escaped(rest)
}

/// A page of a verb, with exit codes and other pages.
pub(crate) fn verb(command: &Command, name: &str) -> Result<String, std::io::Error> {
    let man = clap_mangen::Man::new(command.clone()).title(name.to_uppercase());
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut text)?;
    }
    let others = ["packetloom(1)", "packetloom-chain(5)", "packetloom-rules(5)"];
    let own = format!("{name}(1)");
    let others: Vec<_> = others.into_iter().filter(|page| *page != own).collect();
    Ok(String::from_utf8_lossy(&text).into_owned() + &Page::default().end(&others))
}

/// packetloom-chain(5), from the schema of chain files.
pub(crate) fn chain(schema: &Value) -> String {
    let mut page = Page::new("packetloom-chain", 5, "chains of network functions over packets");
    page.heading("DESCRIPTION");
    page.text(
        "A chain file is a TOML file. It says where packets come from, which functions they go through, in the order of the file, and \
         where packets and records go.",
    );
    page.paragraph(
        "Paths are relative to the folder of the file; `-` is standard input or output. `packetloom check` prints what a chain does, or its \
         mistakes with file and line. `packetloom schema` prints a JSON Schema, from which the lists of keys here are made, too. \
         `packetloom example` writes chains to begin with.",
    );
    page.paragraph(
        "Times are numbers with a unit, such as `\"200us\"`, `\"30s\"` or `\"5m\"`; rates `\"10Mbit/s\"` or `\"1000packets/s\"`; sizes \
         `\"64kB\"`. Numbers may have the suffixes k, M and G.",
    );
    let properties = &schema["properties"];
    for (name, of) in [
        ("[source]", &properties["source"]),
        ("[sink]", &properties["sink"]),
        ("[run]", &properties["run"]),
        ("[flows.NAME]", &properties["flows"]["additionalProperties"]),
    ] {
        page.heading(name);
        if let Some(what) = of["description"].as_str() {
            page.text(&sentence(what));
        }
        keys(&mut page, of);
    }
    page.heading("[[chain]]");
    page.text("A function. The key `nf` says which one; the others are its own.");
    for function in properties["chain"]["items"]["oneOf"].as_array().into_iter().flatten() {
        page.subheading(&format!(
            "nf = \"{}\"",
            function["properties"]["nf"]["const"].as_str().unwrap_or_default()
        ));
        page.text(&sentence(function["description"].as_str().unwrap_or_default()));
        keys(&mut page, function);
    }
    page.heading("EXAMPLES");
    page.text("What `packetloom example edge-filter` writes:");
    page.code(CHAIN);
    page.end(&["packetloom(1)", "packetloom-run(1)", "packetloom-check(1)", "packetloom-rules(5)"])
}

/// With a capital letter and a stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", letters.as_str()).replace('\n', " ")
}

/// The keys of a section.
fn keys(page: &mut Page, section: &Value) {
    let is_required =
        |name: &str| section["required"].as_array().is_some_and(|names| names.contains(&name.into()));
    for (name, key) in
        section["properties"].as_object().into_iter().flatten().filter(|(name, _)| *name != "nf")
    {
        let mut text = key["description"].as_str().map(sentence).unwrap_or_default();
        let mut add = |note: String| {
            if !text.is_empty() {
                text.push(' ');
            }
            text += &note;
        };
        let one_of = key["oneOf"].as_array().into_iter().chain(key["anyOf"].as_array()).flatten();
        let words =
            key["enum"].as_array().into_iter().flatten().chain(one_of.filter_map(|one| one.get("const")));
        let words: Vec<_> = words.filter_map(Value::as_str).map(|word| format!("`\"{word}\"`")).collect();
        if !words.is_empty() {
            add(format!("One of {}.", words.join(", ")));
        }
        match &key["default"] {
            Value::Null if is_required(name) => add("It has to be given.".into()),
            Value::Null => {}
            default => add(format!("Unless given: `{default}`.")),
        }
        page.tagged(&format!("**{name}**"), &text);
    }
}

/// packetloom-rules(5), from the page of the documents.
pub(crate) fn rules() -> String {
    let mut page = Page::new("packetloom-rules", 5, "rules of access control lists");
    page.heading("DESCRIPTION");
    markdown(&mut page, include_str!("../../../docs/rules.md"));
    page.heading("EXAMPLES");
    page.text("What `packetloom example edge-filter` writes:");
    page.code(RULES);
    page.end(&[
        "packetloom(1)",
        "packetloom-acl-check(1)",
        "packetloom-acl-explain(1)",
        "packetloom-chain(5)",
    ])
}

/// A page of the documents without its title.
fn markdown(page: &mut Page, text: &str) {
    let mut lines = text.lines().skip_while(|line| line.starts_with("# ")).peekable();
    let mut is_first = true;
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            page.heading(&heading.to_uppercase());
            is_first = true;
        } else if let Some(heading) = line.strip_prefix("### ") {
            page.subheading(heading);
            is_first = true;
        } else if line.starts_with("```") {
            let code: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            page.code(&code.join("\n"));
        } else if line.starts_with('|') {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            // The line between a table's head and its rows.
            if let [first, rest @ ..] = &cells[..]
                && !first.starts_with("---")
            {
                page.tagged(first, &rest.join("; "));
            }
        } else if !line.trim().is_empty() {
            // A paragraph, or an item of a list, over its lines.
            let mut whole = line.trim().to_owned();
            let goes_on = |next: &&str| {
                !next.trim().is_empty()
                    && !next.trim().starts_with("- ")
                    && !next.starts_with(['#', '|', '`'])
                    || next.starts_with('`') && !next.starts_with("```")
            };
            while let Some(next) = lines.next_if(goes_on) {
                whole += " ";
                whole += next.trim();
            }
            match whole.strip_prefix("- ") {
                Some(item) => {
                    page.request(".IP \\(bu 2");
                    page.text(item);
                }
                None if is_first => page.text(&whole),
                None => page.paragraph(&whole),
            }
            is_first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_those_of_the_page() {
        assert_eq!(
            inline("a `b-c` **`d`** [e `f`](g.md#h) *i [j"),
            "a \\fBb\\-c\\fP \\fBd\\fP e \\fBf\\fP *i [j"
        );
        assert_eq!(escaped("\\ ' `"), "\\e \\(aq \\(ga");
        let mut page = Page::default();
        markdown(
            &mut page,
            "# T\n\nx\ny\n\n- a\n  b\n- c\n\n| k | v |\n| --- | --- |\n| d | `e` |\n```\n.f\n```\n",
        );
        let expected = "x y\n.IP \\(bu 2\na b\n.IP \\(bu 2\nc\n.TP\nk\nv\n.TP\nd\n\\fBe\\fP\n.PP\n.RS 4\n.nf\n\\&.f\n.fi\n.RE\n";
        assert_eq!(page.0, expected);
    }
}
