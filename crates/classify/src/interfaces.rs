//! Sets of network interfaces, by name.

use std::collections::BTreeMap;
use std::fmt;

/// Bytes of an interface's name, at most, as Linux has it.
const MAX_NAME: usize = 15;

/// Names of interfaces, or the beginnings of names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pattern {
    name: Box<str>,
    /// Whether it is that of every name that begins so.
    is_prefix: bool,
}

/// The interfaces by which packets come for which a rule is: a set of names.
///
/// In text it is a list: names, beginnings of names with a `+` behind, and `any`, each with a `!` in front where it is left out. The most
/// particular of them that a name has decides: the whole name, or else the longest beginning. Names that none is about are in
/// the set where the list leaves out only, or has `any`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    /// For each pattern whether its names are in the set.
    patterns: BTreeMap<Pattern, bool>,
    rest: bool,
}

impl Interfaces {
    /// Every interface.
    pub const ALL: Self = Self { patterns: BTreeMap::new(), rest: true };

    /// The interface of this name, or those whose names begin so where it ends with a `+`, as iptables has it.
    ///
    /// # Errors
    ///
    /// It can be no name, and why.
    pub fn named(name: &str) -> Result<Self, String> {
        if name == "+" {
            return Ok(Self::ALL);
        }
        let pattern = Pattern::parse(name)?;
        Ok(Self { patterns: BTreeMap::from([(pattern, true)]), rest: false })
    }

    /// Reads a list, such as `eth0,wg+` or `!lo`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut set = Self { patterns: BTreeMap::new(), rest: false };
        let mut rest = None;
        let mut leaves_out_only = true;
        for item in list.split(',') {
            let (name, is_in) = item.strip_prefix('!').map_or((item, true), |name| (name, false));
            leaves_out_only &= !is_in;
            if name == "any" || name == "+" {
                if rest.replace(is_in).is_some() {
                    return Err(format!("interfaces {list:?}: {name:?} stands twice"));
                }
            } else if set.patterns.insert(Pattern::parse(name)?, is_in).is_some() {
                return Err(format!("interfaces {list:?}: {name:?} stands twice"));
            }
        }
        set.rest = rest.unwrap_or(leaves_out_only);
        Ok(set.reduced())
    }

    /// Whether an interface is in the set; `None` is one whose name is not known, which has none of the names.
    pub fn contains(&self, interface: Option<&str>) -> bool {
        let Some(interface) = interface else { return self.rest };
        let exact = Pattern { name: interface.into(), is_prefix: false };
        self.value(&exact)
    }

    /// Whether the names that a pattern is about, and none that is more particular, are in the set.
    fn value(&self, pattern: &Pattern) -> bool {
        if let Some(&value) = self.patterns.get(pattern) {
            return value;
        }
        let longest = self
            .patterns
            .iter()
            .filter(|(other, _)| other.is_prefix && pattern.name.starts_with(&*other.name))
            .max_by_key(|(other, _)| other.name.len());
        longest.map_or(self.rest, |(_, &value)| value)
    }

    fn both(&self, other: &Self, of: fn(bool, bool) -> bool) -> Self {
        let patterns = self.patterns.keys().chain(other.patterns.keys());
        let patterns =
            patterns.map(|pattern| (pattern.clone(), of(self.value(pattern), other.value(pattern))));
        Self { patterns: patterns.collect(), rest: of(self.rest, other.rest) }.reduced()
    }

    /// The interfaces of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.both(other, |a, b| a && b)
    }

    /// The interfaces of one of them, or both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.both(other, |a, b| a || b)
    }

    /// The interfaces that are not in it.
    #[must_use]
    pub fn complement(&self) -> Self {
        let patterns = self.patterns.iter().map(|(pattern, is_in)| (pattern.clone(), !is_in));
        Self { patterns: patterns.collect(), rest: !self.rest }
    }

    /// Without patterns that say what is said anyway.
    fn reduced(mut self) -> Self {
        let needless = |set: &Self, pattern: &Pattern, value: bool| {
            let others = set.patterns.iter().filter(|(other, _)| *other != pattern);
            let others = Self { patterns: others.map(|(p, v)| (p.clone(), *v)).collect(), rest: set.rest };
            others.value(pattern) == value
        };
        // The longest first: what these say depends on shorter ones alone.
        let mut all: Vec<_> =
            self.patterns.iter().map(|(pattern, value)| (pattern.clone(), *value)).collect();
        all.sort_by_key(|(pattern, _)| std::cmp::Reverse((pattern.name.len(), !pattern.is_prefix)));
        for (pattern, value) in all {
            if needless(&self, &pattern, value) {
                self.patterns.remove(&pattern);
            }
        }
        self
    }

    /// Whether it has every interface.
    pub fn is_all(&self) -> bool {
        self.rest && self.patterns.is_empty()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        // A name of every pattern that no more particular one is about can be thought of.
        !self.rest && !self.patterns.values().any(|&is_in| is_in)
    }

    /// How much there is to compare.
    pub(crate) fn size(&self) -> usize {
        self.patterns.len()
    }

    /// The names and beginnings (with a `+`) that it is about, and whether they are in it.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (String, bool)> {
        self.patterns.iter().map(|(pattern, &is_in)| (pattern.to_string(), is_in))
    }

    /// Whether names that no pattern is about are in it.
    pub(crate) fn has_rest(&self) -> bool {
        self.rest
    }
}

impl Pattern {
    fn parse(name: &str) -> Result<Self, String> {
        let (text, is_prefix) = name.strip_suffix('+').map_or((name, false), |text| (text, true));
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '!' | '/' | '#' | '"' | '+');
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(is_plain) {
            return Err(format!(
                "interface {name:?}; expected a name of up to {MAX_NAME} letters, digits and signs such as eth0, or its beginning and a \"+\""
            ));
        }
        Ok(Self { name: text.into(), is_prefix })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.is_prefix { "+" } else { "" })
    }
}

/// The list that is read as this set.
impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaves_out_only = self.patterns.values().all(|is_in| !is_in);
        let rest = match (self.rest, leaves_out_only) {
            (true, true) if !self.patterns.is_empty() => None,
            (true, _) => Some("any"),
            (false, true) => Some("!any"),
            (false, false) => None,
        };
        let patterns =
            self.patterns.iter().map(|(name, is_in)| format!("{}{name}", if *is_in { "" } else { "!" }));
        let list: Vec<_> = rest.map(str::to_owned).into_iter().chain(patterns).collect();
        f.write_str(&list.join(","))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every name of up to three letters of two.
    fn names() -> Vec<String> {
        let mut names = vec![String::new()];
        let mut at = 0;
        while names[at].len() < 3 {
            for letter in ['a', 'b'] {
                names.push(format!("{}{letter}", names[at]));
            }
            at += 1;
        }
        names.split_off(1)
    }

    fn set() -> impl Strategy<Value = Interfaces> {
        let pattern = (prop::sample::select(names()), any::<bool>())
            .prop_map(|(name, is_prefix)| Pattern { name: name.into(), is_prefix });
        (prop::collection::btree_map(pattern, any::<bool>(), 0..6), any::<bool>())
            .prop_map(|(patterns, rest)| Interfaces { patterns, rest })
    }

    proptest! {
        #[test]
        fn sets_are_sets(a in set(), b in set()) {
            let (both, either, other) = (a.intersection(&b), a.union(&b), a.complement());
            let reduced = a.clone().reduced();
            for name in names().iter().map(|name| Some(&**name)).chain([None]) {
                let (in_a, in_b) = (a.contains(name), b.contains(name));
                prop_assert_eq!(both.contains(name), in_a && in_b);
                prop_assert_eq!(either.contains(name), in_a || in_b);
                prop_assert_eq!(other.contains(name), !in_a);
                prop_assert_eq!(reduced.contains(name), in_a);
            }
            prop_assert!(a.intersection(&other).is_empty());
            prop_assert!(a.union(&other).is_all());
            // What is written is read as the same set.
            prop_assert_eq!(Interfaces::parse(&reduced.to_string()).expect("a list"), reduced);
        }
    }

    #[test]
    fn lists_are_read() {
        let read = |text: &str| Interfaces::parse(text).expect("a list");
        for (list, within, without) in [
            ("eth0", vec!["eth0"], vec!["eth", "eth00", "lo"]),
            ("eth0,wg+", vec!["eth0", "wg", "wg1"], vec!["w", "eth1"]),
            ("!lo", vec!["eth0", "l"], vec!["lo"]),
            ("eth+,!eth0", vec!["eth", "eth1"], vec!["eth0", "lo"]),
            ("any,!eth+,eth0", vec!["lo", "eth0"], vec!["eth1"]),
        ] {
            let set = read(list);
            assert!(within.iter().all(|name| set.contains(Some(name))), "{list}");
            assert!(!without.iter().any(|name| set.contains(Some(name))), "{list}");
        }
        assert!(read("any").is_all() && read("!any").is_empty() && read("+").is_all());
        assert!(!read("eth0").contains(None) && read("!eth0").contains(None));
        for (list, expected) in [
            ("", "interface \"\""),
            ("eth0,", "interface \"\""),
            ("eth0,eth0", "stands twice"),
            ("a-name-too-long-0", "up to 15"),
            ("et/h", "expected a name"),
            ("!!lo", "expected a name"),
        ] {
            let error = Interfaces::parse(list).expect_err("no list");
            assert!(error.contains(expected), "{error}");
        }
    }
}
