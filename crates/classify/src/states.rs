//! Sets of connection states.

use std::fmt;

/// What a packet is to the connections that a list tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectionState {
    /// It opens a connection, or is of one that was not answered yet and comes from the end that opened it.
    New,
    /// It belongs to a connection that was answered, or answers one.
    Established,
    /// It is an ICMP or ICMPv6 error that quotes a packet of a connection.
    Related,
    /// It belongs to no connection and cannot open one.
    Invalid,
    /// It has no connection, as later fragments and neighbour discovery; or there was no room for one.
    Untracked,
}

impl ConnectionState {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// All of them, by number.
    pub const ALL: [Self; Self::COUNT] =
        [Self::New, Self::Established, Self::Related, Self::Invalid, Self::Untracked];

    /// The word in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Established => "established",
            Self::Related => "related",
            Self::Invalid => "invalid",
            Self::Untracked => "untracked",
        }
    }

    /// The state of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of connection states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionStates(u8);

impl ConnectionStates {
    /// Every state: asks for nothing.
    pub const ALL: Self = Self((1 << ConnectionState::COUNT) - 1);
    /// No state.
    pub const NONE: Self = Self(0);

    /// One state.
    pub const fn one(state: ConnectionState) -> Self {
        Self(1 << state as u8)
    }

    /// Reads a list such as `established,related`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(list: &str) -> Result<Self, String> {
        list.split(',').try_fold(Self::NONE, |states, name| {
            let state = ConnectionState::by_name(name).map(Self::one).ok_or_else(|| {
                format!("state {name:?}; expected new, established, related, invalid or untracked")
            })?;
            if states.intersection(state).is_empty() {
                Ok(states.union(state))
            } else {
                Err(format!("states {list:?}: {name:?} stands twice"))
            }
        })
    }

    /// The states of one of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The states of both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The states that are not in it.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(Self::ALL.0 & !self.0)
    }

    /// Whether a state is in it.
    #[inline]
    pub const fn contains(self, state: ConnectionState) -> bool {
        self.0 >> state as u8 & 1 == 1
    }

    /// Whether it has every state.
    pub const fn is_all(self) -> bool {
        self.0 == Self::ALL.0
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its states.
    pub fn iter(self) -> impl Iterator<Item = ConnectionState> {
        ConnectionState::ALL.into_iter().filter(move |&state| self.contains(state))
    }
}

/// The list that is read as this set.
impl fmt::Display for ConnectionStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(ConnectionState::name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        for a in 0..32 {
            let set = ConnectionStates(a);
            if !set.is_empty() {
                assert_eq!(ConnectionStates::parse(&set.to_string()), Ok(set));
            }
            assert!(set.union(set.complement()).is_all() && set.intersection(set.complement()).is_empty());
            for state in ConnectionState::ALL {
                assert_eq!(set.contains(state), a >> state as u8 & 1 == 1);
                assert_eq!(ConnectionState::by_name(state.name()), Some(state));
            }
        }
        for (list, expected) in
            [("", "state \"\""), ("new,", "state \"\""), ("new,new", "stands twice"), ("NEW", "expected new")]
        {
            let error = ConnectionStates::parse(list).expect_err("no list");
            assert!(error.contains(expected), "{error}");
        }
    }
}
