//! Text for people: numbers, names from payloads, and tables.

/// A number with commas between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0.0%".into();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// A number with a prefix of its unit where it is long: 1,500 is `1.5k`.
pub(crate) fn scaled(number: u64) -> String {
    const PREFIXES: [(u64, &str); 6] = [
        (1_000_000_000_000_000_000, "E"),
        (1_000_000_000_000_000, "P"),
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    match PREFIXES.into_iter().find(|(unit, _)| number >= *unit) {
        None => number.to_string(),
        Some((unit, prefix)) => {
            let hundredths = number / (unit / 100).max(1) % 100;
            let digits = match (hundredths / 10, hundredths % 10) {
                (0, 0) => String::new(),
                (tenths, 0) => format!(".{tenths}"),
                _ => format!(".{hundredths:02}"),
            };
            format!("{}{digits}{prefix}", number / unit)
        }
    }
}

/// Whether a letter does something other than to be seen: control characters move a terminal's cursor, and those that say the direction of
/// text turn what stands beside them. XML cannot have some of them at all.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// Text as it can be shown: letters that are not seen are written as `\u{…}`, and a backslash twice.
pub(crate) fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => shown.push_str("\\\\"),
            letter if is_hidden(letter) => shown.extend(letter.escape_unicode()),
            letter => shown.push(letter),
        }
    }
    shown
}

/// Text of so many letters at most.
pub(crate) fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.into();
    }
    text.chars().take(letters.saturating_sub(1)).collect::<String>() + "…"
}

/// A table: the head of each column, and rows. The first `left` columns are aligned on the left, the others on the right.
pub(crate) fn table(head: &[String], rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| &row[column]).chain([&head[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in [head].into_iter().chain(rows.iter().map(Vec::as_slice)) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let room = " ".repeat(widths[column] - cell.chars().count());
            let between = if column > 0 { "  " } else { "" };
            let (before, behind) = if column < left { ("", &*room) } else { (&*room, "") };
            line.extend([between, before, cell, behind]);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [(0, 0), (1, 3), (2, 3), (u64::MAX, u64::MAX)].map(|(part, of)| percent(part, of)),
            ["0.0%", "33.3%", "66.7%", "100.0%"]
        );
        assert_eq!(
            [999, 1_000, 1_500, 2_250_000, 1_010_000].map(scaled),
            ["999", "1k", "1.5k", "2.25M", "1.01M"]
        );
        assert_eq!(scaled(u64::MAX), "18.44E");
    }

    #[test]
    fn hidden_letters_are_written() {
        assert_eq!(clean("a\u{1b}[2J\nb\\c"), "a\\u{1b}[2J\\u{a}b\\\\c");
        assert_eq!(
            clean("x\u{202e}y\u{feff}\u{9b}\u{7f}\u{ffff}"),
            "x\\u{202e}y\\u{feff}\\u{9b}\\u{7f}\\u{ffff}"
        );
        assert_eq!(clean("bücher.example 日本"), "bücher.example 日本");
        assert_eq!(shortened("letters", 4), "let…");
    }
}
