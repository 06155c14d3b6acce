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
        self.patterns.get(pattern).copied().unwrap_or_else(|| self.value_above(pattern))
    }

    /// The same by less particular patterns alone: the longest beginning that is there.
    fn value_above(&self, pattern: &Pattern) -> bool {
        // A beginning is less particular than itself as a whole name.
        let longest = pattern.name.len() - usize::from(pattern.is_prefix);
        let beginnings = (1..=longest).rev().filter_map(|len| pattern.name.get(..len));
        let find = |name: &str| self.patterns.get(&Pattern { name: name.into(), is_prefix: true });
        beginnings.filter_map(find).next().copied().unwrap_or(self.rest)
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
        // As it is for most rules.
        if other.is_all() || self == other {
            return self.clone();
        }
        if self.is_all() {
            return other.clone();
        }
        self.both(other, |a, b| a && b)
    }

    /// The interfaces of one of them, or both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.both(other, |a, b| a || b)
    }

    /// The interfaces of any of several sets.
    #[must_use]
    pub fn any_of(mut sets: Vec<Self>) -> Self {
        // In pairs, so that each pattern is gone over a few times only.
        while sets.len() > 1 {
            let pairs = sets.chunks(2);
            sets =
                pairs.map(|pair| pair.get(1).map_or_else(|| pair[0].clone(), |b| pair[0].union(b))).collect();
        }
        sets.pop().unwrap_or_else(|| Self::ALL.complement())
    }

    /// The interfaces that are not in it.
    #[must_use]
    pub fn complement(&self) -> Self {
        let patterns = self.patterns.iter().map(|(pattern, is_in)| (pattern.clone(), !is_in));
        Self { patterns: patterns.collect(), rest: !self.rest }
    }

    /// Without patterns that say what is said anyway.
    fn reduced(mut self) -> Self {
        // The longest first: what these say depends on shorter ones alone.
        let mut all: Vec<_> =
            self.patterns.iter().map(|(pattern, value)| (pattern.clone(), *value)).collect();
        all.sort_by_key(|(pattern, _)| std::cmp::Reverse((pattern.name.len(), !pattern.is_prefix)));
        for (pattern, value) in all {
            if self.value_above(&pattern) == value {
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
        let is_plain =
            |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '!' | '/' | '#' | '"' | '+' | '*' | '\\');
        // "any" stands for all in lists.
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(is_plain) || name == "any" {
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
    fn no_interface_is_called_any() {
        assert!(Interfaces::named("any").is_err() && Interfaces::named("any+").is_ok());
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
            ("eth*", "expected a name"),
        ] {
            let error = Interfaces::parse(list).expect_err("no list");
            assert!(error.contains(expected), "{error}");
        }
    }
}
