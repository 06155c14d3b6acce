//! The examples of docs/rules.md.

use packetloom_classify::formats::Format;

use super::verdicts::read;

/// The fenced blocks of a document: what stands behind the fence, and the text.
fn blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(kind) => {
                is_open = true;
                blocks.push((kind, String::new()));
            }
            None if is_open => {
                let block = &mut blocks.last_mut().expect("an open block").1;
                block.push_str(line);
                block.push('\n');
            }
            None => {}
        }
    }
    blocks
}

#[test]
fn examples_of_rules_are_what_the_document_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let blocks = blocks(&document);
    let mut examples = 0;
    for (number, (kind, text)) in blocks.iter().enumerate() {
        match *kind {
            "rules" => {
                let reading = read(Format::Native, text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert!(!reading.rules.rules.is_empty(), "{text}");
                examples += 1;
            }
            "expanded" => {
                let (_, rules) = &blocks[number - 1];
                let rules = read(Format::Native, rules).expect("read before").rules.rules;
                let shown: Vec<_> = rules.iter().map(|rule| format!("{rule}\n")).collect();
                assert_eq!(shown.concat(), *text);
                examples += 1;
            }
            _ => {}
        }
    }
    assert!(examples >= 4, "{examples}");
}
