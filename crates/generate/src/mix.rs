//! Headers mixed with each other.

use packetloom_classify::formats;

use crate::random::Random;

/// Gives each header the source of one header, the destination of another, and ports, protocol and the rest of a third, all of
/// its family. Every field is as common as before, but few headers still meet the rule they were made for: most match late
/// or nothing but the default. The same headers and seed give the same headers.
pub fn mix_headers(headers: &mut formats::Headers, seed: u64) {
    let mut random = Random::new(seed, 33);
    shuffle(&mut headers.v4, &mut random, |key| &mut key.source);
    shuffle(&mut headers.v4, &mut random, |key| &mut key.destination);
    shuffle(&mut headers.v6, &mut random, |key| &mut key.source);
    shuffle(&mut headers.v6, &mut random, |key| &mut key.destination);
}

/// Deals one field of all keys out anew.
fn shuffle<K, F: Copy>(keys: &mut [K], random: &mut Random, field: impl Fn(&mut K) -> &mut F) {
    let mut values: Vec<F> = keys.iter_mut().map(|key| *field(key)).collect();
    random.shuffle(&mut values);
    for (key, value) in keys.iter_mut().zip(values) {
        *field(key) = value;
    }
}
