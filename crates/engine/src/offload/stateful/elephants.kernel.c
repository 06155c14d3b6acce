/*
 * Elephants: flows with very many packets of a batch. One group would take their packets through the functions for longer than all others
 * need for the rest. So their parts are judged before, in three steps with many groups, by pieces of as many packets as a group has items:
 *
 * - summary: what the packets of each piece do to the functions' states, whatever these are, if none of the packets is dropped,
 *   or if so many of them are.
 * - apply: one item takes the entry from piece to piece by their summaries, and notes what it is before each. Where a summary does not hold, as
 *   where a limiter drops some packets of different prices, or where there are other flows' packets among them, the whole group judges the
 *   piece.
 * - finish: the pieces whose summaries were applied are judged, each with the entry that was noted for it.
 *
 * A function takes part with STEP_SUMMARIZE(name), which writes a struct and says whether it holds; and STEP_APPLY(name), which brings a state
 * up to date by it, unless that state lets it not hold. Both are told when the first and the latest of the packets come. The second is
 * also told how many were dropped by functions before, not which ones, and adds those that this one drops.
 *
 * Before this text stands chain.kernel.c, with what the host defines.
 */
#if !PARTITIONS

/* A summary begins with a SummaryHead; then come the functions' words, and the entry. */
#define SUMMARY_HEAD ((u32)sizeof(SummaryHead) / 8)
#define SUMMARY_ENTRY (SUMMARY_HEAD + SUMMARY_WORDS)
#define SUMMARY_STRIDE (SUMMARY_ENTRY + MAX_WORDS)

/* Kinds: packets of other flows are among them; it does not say what they do; it does; it was applied. */
#define SUMMARY_MIXED 0u
#define SUMMARY_CLOSED 1u
#define SUMMARY_OPEN 2u
#define SUMMARY_APPLIED 3u

/* Takes the packets of a piece: what is looked up for that of each item. */
FUNCTION u32 take_piece(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 tiles, u32 tile_items, GLOBAL const u16 *order,
                        u32 piece, u32 all, PRIVATE Taken *taken) {
  u32 at = piece * GROUP + local_index();
  return at < all ? packet_take(stage, taken, packet_of(work, team, tiles, tile_items, order, at)) : LOOKS_NOT;
}

/* Which flow is the elephant, if any is: that of the packet in the middle. */
FUNCTION void begin_elephant(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 tiles, u32 tile_items,
                             GLOBAL const u16 *order, u32 all) {
  if (local_index() == 0) {
    Taken taken;
    packet_take(stage, &taken, packet_of(work, team, tiles, tile_items, order, all / 2));
    for (u32 i = 0; i < KEY_WORDS(stage->is_v6); i++) {
      work->flow[i] = taken.key[i];
    }
    work->flow_hash = taken.hash;
  }
  barrier_group();
}

/* Finds the place of its entry, with one item. */
FUNCTION void find_elephant(LOCAL Judge *work, PRIVATE const Stage *stage) {
  barrier_group();
  if (local_index() == 0) {
    u64 key[5];
    u64 line[MAX_WORDS];
    for (u32 i = 0; i < KEY_WORDS(stage->is_v6); i++) {
      key[i] = work->flow[i];
    }
    work->flow_slot = states_find(&stage->states, work->flow_hash, key, KEY_WORDS(stage->is_v6), stage->words, line);
  }
  barrier_group();
}

FUNCTION u32 is_of_elephant(LOCAL const Judge *work, PRIVATE const Stage *stage, PRIVATE const Taken *taken) {
  u32 is_same = 1;
  for (u32 i = 0; i < KEY_WORDS(stage->is_v6); i++) {
    is_same = is_same && work->flow[i] == taken->key[i];
  }
  return is_same;
}

/* How a function summarizes a piece, and applies a summary to its state. */
#define CALL_SUMMARIZE(name, bit, word, own_words, own_parameters, own_totals, own_more, own_list, kind, own_summarize)              \
  is_open = name##_summarize(&group, &taken.packet, is_member, first, latest, PARAMETERS_OF(name, own_parameters),                   \
                             (GLOBAL name##_Summary *)(summary + SUMMARY_HEAD + own_summarize)) &&                                   \
            is_open;
#define CALL_APPLY(name, bit, word, own_words, own_parameters, own_totals, own_more, own_list, kind, own_summarize)                  \
  holds = holds && name##_apply((PRIVATE name##_State *)&next[key_words + 1 + word], first, latest, PARAMETERS_OF(name, own_parameters), \
                                (PRIVATE const name##_Summary *)(summary + SUMMARY_HEAD + own_summarize), &dropped);

#define SUMMARY_PIECE(number)                                                                                                        \
  FUNCTION void summarize_piece_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 tiles, u32 tile_items, \
                                       GLOBAL const u16 *order, u32 piece, u32 all, GLOBAL u64 *summary) {                           \
    Taken taken;                                                                                                                     \
    u32 looks = take_piece(work, stage, team, tiles, tile_items, order, piece, all, &taken);                                         \
    u32 is_member = looks == LOOKS_UP && is_of_elephant(work, stage, &taken);                                                        \
    /* What stages before have begun anew is for those who look at each packet. */                                                   \
    u32 is_anew = is_member && (taken.answer >> (ANSWER_ANEW + stage->definition) & 1);                                              \
    u32 is_mixed = team_any(&work->meeting, team, looks != LOOKS_NOT && !is_member);                                                 \
    u32 is_open = !is_mixed && !team_any(&work->meeting, team, is_anew);                                                             \
    FlowGroup group = flow_group_of(work, team);                                                                                     \
    group.first = team_first(&work->meeting, team, is_member);                                                                       \
    is_open = is_open && group.first != EMPTY;                                                                                       \
    if (is_open) {                                                                                                                   \
      u32 item = team_item(team);                                                                                                    \
      if (item == group.first) {                                                                                                     \
        group.scratch[0] = taken.packet.now;                                                                                         \
      }                                                                                                                              \
      team_sync(team);                                                                                                               \
      u64 first = group.scratch[0];                                                                                                  \
      u64 now = is_member ? taken.packet.now : 0;                                                                                    \
      u64 latest;                                                                                                                    \
      u64 before = team_before(&work->meeting, team, 0, now, &latest);                                                               \
      u64 gap = team_largest(&work->meeting, team, is_member && item != group.first && now > before ? now - before : 0);             \
      STAGE_##number(CALL_SUMMARIZE)                                                                                                 \
      if (item == 0) {                                                                                                               \
        ((GLOBAL SummaryHead *)summary)->first = first;                                                                              \
        ((GLOBAL SummaryHead *)summary)->latest = latest;                                                                            \
        ((GLOBAL SummaryHead *)summary)->gap = gap;                                                                                  \
      }                                                                                                                              \
    }                                                                                                                                \
    if (team_item(team) == 0) {                                                                                                      \
      ((GLOBAL SummaryHead *)summary)->kind = is_mixed ? SUMMARY_MIXED : is_open ? SUMMARY_OPEN : SUMMARY_CLOSED;                    \
    }                                                                                                                                \
    team_sync(team);                                                                                                                 \
  }

/* Reads the summary of a piece. */
FUNCTION void summary_load(GLOBAL const u64 *summary, PRIVATE u64 *words) {
  for (u32 i = 0; i < SUMMARY_ENTRY; i++) {
    words[i] = summary[i];
  }
}

/*
 * Follows summaries from a piece on, as far as they hold, with the entry: the first piece whose summary does not, or `pieces`. The next summary is
 * read while one is applied, as there are no other warps whose work would hide that it is waited for.
 */
#define APPLY_PIECES(number)                                                                                                         \
  FUNCTION u32 apply_pieces_##number(PRIVATE const Stage *stage, GLOBAL u64 *entry, GLOBAL u64 *summaries, u32 piece, u32 pieces) {  \
    u32 key_words = KEY_WORDS(stage->is_v6);                                                                                         \
    u64 line[MAX_WORDS];                                                                                                             \
    states_load(entry, 0, stage->words, line);                                                                                       \
    u64 ahead[SUMMARY_ENTRY];                                                                                                        \
    summary_load(summaries + (u64)piece * SUMMARY_STRIDE, ahead);                                                                    \
    for (; piece < pieces; piece++) {                                                                                                \
      GLOBAL u64 *summarized = summaries + (u64)piece * SUMMARY_STRIDE;                                                              \
      u64 summary[SUMMARY_ENTRY];                                                                                                    \
      for (u32 i = 0; i < SUMMARY_ENTRY; i++) {                                                                                      \
        summary[i] = ahead[i];                                                                                                       \
      }                                                                                                                              \
      if (piece + 1 < pieces) {                                                                                                      \
        summary_load(summarized + SUMMARY_STRIDE, ahead);                                                                            \
      }                                                                                                                              \
      PRIVATE const SummaryHead *head = (PRIVATE const SummaryHead *)summary;                                                        \
      u64 first = head->first;                                                                                                       \
      u64 latest = head->latest;                                                                                                     \
      u64 last = line[key_words];                                                                                                    \
      u32 holds = head->kind == SUMMARY_OPEN && (line[key_words - 1] & stage->mask) == stage->mask;                                  \
      if (stage->is_first) {                                                                                                         \
        u64 silent = first > last ? first - last : 0;                                                                                \
        holds = holds && silent < stage->states.timeout && head->gap < stage->states.timeout;                                        \
      }                                                                                                                              \
      u64 dropped = 0;                                                                                                               \
      u64 next[MAX_WORDS];                                                                                                           \
      for (u32 i = 0; i < stage->words; i++) {                                                                                       \
        next[i] = line[i];                                                                                                           \
      }                                                                                                                              \
      STAGE_##number(CALL_APPLY)                                                                                                     \
      if (!holds) {                                                                                                                  \
        break;                                                                                                                       \
      }                                                                                                                              \
      if (stage->is_first) {                                                                                                         \
        next[key_words] = larger_64(last, latest);                                                                                   \
        next[key_words - 1] &= ~STATES_TOUCHED;                                                                                      \
      }                                                                                                                              \
      for (u32 i = 0; i < stage->words; i++) {                                                                                       \
        summarized[SUMMARY_ENTRY + i] = line[i];                                                                                     \
        line[i] = next[i];                                                                                                           \
      }                                                                                                                              \
      ((GLOBAL SummaryHead *)summarized)->kind = SUMMARY_APPLIED;                                                                    \
    }                                                                                                                                \
    for (u32 i = key_words - 1; i < stage->words; i++) {                                                                             \
      entry[i] = line[i];                                                                                                            \
    }                                                                                                                                \
    return piece;                                                                                                                    \
  }

/* Takes an elephant through its pieces. */
#define APPLY_ELEPHANT(number)                                                                                                       \
  FUNCTION void apply_elephant_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 drops_refused,        \
                                         u32 tiles, u32 tile_items, GLOBAL const u16 *order, u32 all, GLOBAL u64 *summaries,         \
                                         PRIVATE u64 *totals, MORE u64 *more, PRIVATE StatesCounts *counts) {                        \
    u32 pieces = (all + GROUP - 1) / GROUP;                                                                                          \
    find_elephant(work, stage);                                                                                                      \
    for (u32 piece = 0; piece < pieces; piece++) {                                                                                   \
      if (work->flow_slot < STATES_WAITS) {                                                                                          \
        if (local_index() == 0) {                                                                                                    \
          GLOBAL u64 *entry = STATES_ENTRY(stage->states, work->flow_slot, stage->words);                                            \
          work->piece = apply_pieces_##number(stage, entry, summaries, piece, pieces);                                               \
        }                                                                                                                            \
        barrier_group();                                                                                                             \
        piece = work->piece;                                                                                                         \
      }                                                                                                                              \
      if (piece < pieces) {                                                                                                          \
        Taken taken;                                                                                                                 \
        u32 looks = take_piece(work, stage, team, tiles, tile_items, order, piece, all, &taken);                                     \
        u32 is_mixed = ((GLOBAL SummaryHead *)(summaries + (u64)piece * SUMMARY_STRIDE))->kind == SUMMARY_MIXED;                     \
        if (is_mixed || work->flow_slot >= STATES_WAITS) {                                                                           \
          judge_taken_##number(work, stage, team, drops_refused, looks, &taken, totals, more, counts);                               \
          find_elephant(work, stage);                                                                                                \
        } else {                                                                                                                     \
          taken.slot = work->flow_slot;                                                                                              \
          judge_flow_group_##number(work, stage, team, work->flow_slot, looks == LOOKS_UP, &taken, totals, more, counts);            \
        }                                                                                                                            \
      }                                                                                                                              \
      barrier_group();                                                                                                               \
    }                                                                                                                                \
  }

#define SETTLE_PIECE(number)                                                                                                         \
  FUNCTION void finish_piece_##number(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, u32 tiles, u32 tile_items,  \
                                      GLOBAL const u16 *order, u32 piece, u32 all, GLOBAL const u64 *summary, PRIVATE u64 *totals,   \
                                      MORE u64 *more) {                                                                              \
    Taken taken;                                                                                                                     \
    u32 looks = take_piece(work, stage, team, tiles, tile_items, order, piece, all, &taken);                                         \
    team_sync(team);                                                                                                                 \
    for (u32 i = team_item(team); i < stage->words; i += GROUP) {                                                                    \
      work->line[0][i] = summary[SUMMARY_ENTRY + i];                                                                                 \
    }                                                                                                                                \
    team_sync(team);                                                                                                                 \
    pass_flow_group_##number(work, stage, team, looks == LOOKS_UP, &taken, totals, more);                                            \
    team_sync(team);                                                                                                                 \
  }

/* One of those that a batch has: the next one's number, its packets and pieces, and their summaries. */
typedef struct {
  u32 next;
  u32 all, pieces;
  GLOBAL u64 *summaries;
} Elephant;

FUNCTION Elephant no_elephant(GLOBAL u64 *summaries) {
  Elephant elephant;
  elephant.next = 0;
  elephant.all = 0;
  elephant.pieces = 0;
  elephant.summaries = summaries;
  return elephant;
}

/* Goes on to the next one of an IP version; whether there is one. */
FUNCTION u32 next_elephant(LOCAL Judge *work, PRIVATE const Stage *stage, PRIVATE Team *team, GLOBAL const Elephants *elephants, u32 turn,
                           u32 part_bits, u32 parts, u32 tiles, u32 tile_items, GLOBAL const u16 *order, GLOBAL const u16 *offsets,
                           PRIVATE Elephant *elephant) {
  u32 found = elephants->counts[turn % 2];
  while (elephant->next < found && elephant->next < ELEPHANTS) {
    u32 part = elephants->parts[turn % 2][elephant->next++];
    if (part >> part_bits == stage->is_v6) {
      elephant->summaries += (u64)elephant->pieces * SUMMARY_STRIDE;
      elephant->all = begin_part(work, team, part, parts, tiles, offsets);
      elephant->pieces = (elephant->all + GROUP - 1) / GROUP;
      begin_elephant(work, stage, team, tiles, tile_items, order, elephant->all);
      return 1;
    }
  }
  return 0;
}

#define EACH_ELEPHANT                                                                                                                \
  team.first = 0;                                                                                                                    \
  team.size = GROUP;                                                                                                                 \
  team.place = 0;                                                                                                                    \
  for (Elephant elephant = no_elephant(summaries); next_elephant(work, &stage, &team, elephants, turn, part_bits, all_parts, tiles,  \
                                                                tile_items, order, offsets, &elephant);)

/* Groups have its pieces in turns. */
#define EACH_PIECE                                                                                                                   \
  for (u32 piece = (group_index() + elephant.next) % group_count(); piece < elephant.pieces; piece += group_count())

#define ELEPHANTS_OF_VERSION(number, version, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                  \
  KERNEL void summarize_##version##_##number(JUDGE_PARAMETERS) {                                                                     \
    STAGE_BEGIN(number, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                                        \
    EACH_ELEPHANT {                                                                                                                  \
      EACH_PIECE {                                                                                                                   \
        summarize_piece_##number(work, &stage, &team, tiles, tile_items, order, piece, elephant.all,                                 \
                               elephant.summaries + (u64)piece * SUMMARY_STRIDE);                                                    \
      }                                                                                                                              \
    }                                                                                                                                \
  }                                                                                                                                  \
  KERNEL void apply_##version##_##number(JUDGE_PARAMETERS) {                                                                         \
    STAGE_BEGIN(number, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                                        \
    COUNTS_BEGIN                                                                                                                     \
    EACH_ELEPHANT {                                                                                                                  \
      if (elephant.next % group_count() == group_index()) {                                                                          \
        apply_elephant_##number(work, &stage, &team, when_full == FULL_DROPS, tiles, tile_items, order, elephant.all, elephant.summaries, totals, \
                                 MORE_OF(work, counted), &counts);                                                                   \
      }                                                                                                                              \
    }                                                                                                                                \
    barrier_group();                                                                                                                 \
    flush_counted(work, totals, &counts, counted, counted + TOTALS + MORE_COUNT + own_definition * TABLE_COUNTS);                    \
  }                                                                                                                                  \
  KERNEL void finish_##version##_##number(JUDGE_PARAMETERS) {                                                                        \
    STAGE_BEGIN(number, own_is_v6, own_definition, own_by, own_is_first, own_words, own_mask)                                        \
    COUNTS_BEGIN                                                                                                                     \
    EACH_ELEPHANT {                                                                                                                  \
      EACH_PIECE {                                                                                                                   \
        GLOBAL const u64 *summary = elephant.summaries + (u64)piece * SUMMARY_STRIDE;                                                \
        if (((GLOBAL const SummaryHead *)summary)->kind == SUMMARY_APPLIED) {                                                        \
          finish_piece_##number(work, &stage, &team, tiles, tile_items, order, piece, elephant.all, summary, totals,                 \
                                MORE_OF(work, counted));                                                                             \
        }                                                                                                                            \
      }                                                                                                                              \
    }                                                                                                                                \
    barrier_group();                                                                                                                 \
    flush_counted(work, totals, &counts, counted, counted + TOTALS + MORE_COUNT + own_definition * TABLE_COUNTS);                    \
  }

#define ELEPHANTS_OF(number, definition, by, is_first, words_v4, words_v6, mask)                                                     \
  SUMMARY_PIECE(number)                                                                                                              \
  APPLY_PIECES(number)                                                                                                               \
  APPLY_ELEPHANT(number)                                                                                                             \
  SETTLE_PIECE(number)                                                                                                               \
  ELEPHANTS_OF_VERSION(number, v4, 0, definition, by, is_first, words_v4, mask)                                                      \
  ELEPHANTS_OF_VERSION(number, v6, 1, definition, by, is_first, words_v6, mask)
ELEPHANT_STAGES(ELEPHANTS_OF)

#endif
