// The C interface that Python loads with ctypes, which reads it here (backends/native/library.py). Plain types only: no
// Python, no torch. Fields with {} may be left out where a structure is made: they are 0 or null then, or written by
// the library, or filled in before each call.
#pragma once
#include <cstdint>

extern "C" {

// A mixture of experts, see headstart.models.config.ExpertsConfig; `count` 0: there is none.
struct HeadstartExperts {
  int32_t count, idle, used, size, gated, shared_gate;  // idle: further ones, which give what they read
  int32_t score, groups, groups_used, group_score, normalised, scales_input;
  float scale, clamp;  // the latter: 0 for none
};

// Latent attention, see headstart.models.config.LatentConfig; `kv_rank` 0: heads have keys and values of their own.
struct HeadstartLatent {
  int32_t kv_rank, plain_dim, rope_dim, value_dim;
  int32_t q_rank;  // 0: queries come from the row itself
  float norm_eps;
};

// Attention to compressed keys, see headstart.models.compressed_config.CompressedConfig; `q_rank` 0: there is none.
struct HeadstartCompressed {
  int32_t q_rank, groups, output_rank;
  int32_t index_heads, index_dim;  // of the indexer; 0: there is none
};

// What may differ from layer to layer, see headstart.models.config.LayerConfig.
struct HeadstartLayer {
  int32_t mixer, channel;
  int32_t window{}, chunk{};  // 0: full attention; not within chunks
  int32_t looks_back{};       // rows see none behind them, even in a pass whose rows see each other
  int32_t rope;               // -1: no rotation
  int32_t head_dim, value_dim, heads, kv_heads;
  int32_t reads;              // the earlier layer whose keys and values it reads; -1: it keeps its own
  int32_t values_are_keys{};  // before their norm and rotation
  int32_t chooses{};          // it has an indexer of its own
  int32_t delays{};           // what its experts give is added behind the next layer
  int32_t mlp;                // of the dense part or, where there are experts, of the shared one; 0: there is none
  int32_t input{};            // which of the inputs it reads, counted from 1; 0: none
  int32_t cuts{};             // gates count from `cut` standard deviations above their mean on
  float cut{};
  int32_t ratio{};     // tokens that close one compressed key; 0: rows see their window alone
  int32_t chosen{};    // such keys that rows see, each made of twice as many tokens; 0: all, made of their own
  int32_t by_token{};  // a table says which experts a token goes through
  // What ups are cut off at on both sides, of the dense part and of experts, and activated gates; 0: nothing.
  float mlp_limit{}, expert_limit{}, mlp_gate_limit{}, expert_gate_limit{};
};

// What layers read beside their stream, see headstart.models.config.LayerInputsConfig; `count` 0: nothing.
struct HeadstartInputs {
  int32_t count, size, tokens;  // the latter: rows of their table; tokens beyond it read the first one
};

// What chooses the tokens that rows of latent attention see, see headstart.models.config.IndexerConfig; `heads` 0:
// nothing.
struct HeadstartIndexer {
  int32_t heads, dim, chosen, turns_last, pool;
  float norm_eps;
};

// Short convolutions, see headstart.models.state_config.ConvolutionConfig; `length` 0: there are none.
struct HeadstartConvolution {
  int32_t length;
};

// Mamba, see headstart.models.state_config.MambaConfig; `inner` 0: there is none.
struct HeadstartMamba {
  int32_t inner, state_size, step_rank, length;
  float norm_eps;
};

// Mamba-2, see headstart.models.state_config.Mamba2Config; `heads` 0: there is none.
struct HeadstartMamba2 {
  int32_t heads, head_dim, state_size, groups, length, norm;
  float least_step, most_step, norm_eps;
};

// Convolutions within the blocks of a block head (DFlash 2), before and after each part of a layer: how many rows they
// read, and channels that change together; `taps` 0: there are none.
struct HeadstartBlockConvolution {
  int32_t taps, group;
};

// The gated delta rule, see headstart.models.state_config.DeltaConfig; `length` 0: there is none.
struct HeadstartDelta {
  int32_t key_heads, value_heads, key_dim, value_dim, length, tiled, by_key, rank;
  float least, norm_eps;
};

// Hyper-connections, see headstart.models.streams_config.HyperConfig; `count` 0: there are none.
struct HeadstartHyper {
  int32_t count, rounds;
  float eps, most;
};

// Sizes in elements. Enumerations by number, in the order of the C++ enums of the same name.
struct HeadstartShape {
  int32_t vocab, hidden, heads, layers;
  int32_t precision, threads;
  int32_t norm, activation, gated, parallel_residual{};
  int32_t joint_head_norms{};    // norms of queries and keys are over all heads together
  int32_t head_norm{};           // their kind, by number as `norm`
  int32_t own_head_norms{};      // heads have weights of their own
  int32_t rotated_head_norms{};  // they are normed after the rotation
  int32_t attention_gate{};      // what heads see is multiplied by a sigmoid; 2: by one for each head
  int32_t entry{}, features{};   // features: true ones of a row (draft heads)
  int32_t tokens;                // rows of the embedding table
  int32_t cross{};               // layers read an encoder memory, too
  float norm_eps, attention_scale, attention_softcap{}, logit_softcap{};  // soft caps: 0 for none
  float embedding_scale, tap_scale;  // the latter: of layers, not of what comes after the final norm
  float value_scale;                 // of what heads see
  float qkv_clip{};                  // queries, keys and values are cut off at it; 0 for none
  float growth{};                    // of queries, see headstart.models.config.QueryGrowth; 0 for none
  int32_t growth_trained{}, growth_everywhere{};
  HeadstartExperts experts{};
  HeadstartLatent latent{};
  HeadstartCompressed compressed{};
  HeadstartIndexer indexer{};
  HeadstartConvolution convolution{};
  HeadstartMamba mamba{};
  HeadstartMamba2 mamba2{};
  HeadstartDelta delta{};
  HeadstartInputs inputs{};
  HeadstartBlockConvolution block_convolution{};
  HeadstartHyper hyper{};
  int32_t streams{};    // residual streams; 0: one
  int32_t side_rank{};  // of a second path beside attention; 0: there is none
};

// One pass; field by field headstart.models.backend.PassBatch. A draft head's rows all have `inputs` beside their
// tokens: the states that it made itself, or the target's.
struct HeadstartPass {
  int32_t rows, sequences, blocks_per_sequence, pages_per_block;
  int32_t wanted, best{}, layers, taps;
  const int32_t *tokens;
  const int32_t *positions{};  // null: as `parents` say; needed where there are `paths`
  const int32_t *parents{}, *row_starts, *cached_lengths, *block_tables;
  const int32_t *first_positions{};         // [sequences] place in its text of the first cached row; null: 0
  const int32_t *logit_rows, *best_rows{};  // [wanted], [best]: ascending, no row in both
  // [taps], -1: after the final norm, -2, ...: each of several streams before they are merged; one less: all of them,
  // side by side in rows [streams * hidden].
  const int32_t *tap_layers;
  const float *inputs{};    // [rows][hidden] in place of token embeddings, or null
  int32_t true_features{};  // draft heads: inputs are the target's, [rows][features]
  int32_t path_length{};
  // A draft that grows pass by pass: [rows][path_length] logical slots behind the cached ones that a row sees, from
  // the first to its own. Its rows stand behind those of the draft's earlier passes. Null: as `parents` say.
  const int32_t *paths{};
  float *logits;           // [wanted][vocab]
  int32_t *best_ids{};     // [best] highest logit, the first of equals; -1 where it is not finite or one is no number
  float *const *tap_rows;  // [taps] pointers to [rows][hidden]
  int32_t logit_stride{};  // floats from one row of `logits` to the next; 0: vocab
  // Taps behind the last layer are wanted of logit_rows and best_rows alone, those of other rows are not written.
  int32_t lean{};
  // Where layers read an encoder memory: [sequences] its positions, and [sequences][memory_blocks] its blocks.
  int32_t memory_blocks{};
  const int32_t *memory_lengths{}, *memory_tables{};
  double *experts{};  // distinct experts that its rows call, on average over layers that have any; null: nobody asks
  // Block heads: the first rows stand for the target's states, `inputs` are theirs [context_rows][features]. Keys and
  // values are made of them in every layer, nothing else. They are sequences of their own.
  int32_t context_rows{};
  int32_t both_ways{};  // rows of a sequence see those behind them, too
  // Where layers keep states: [sequences] the slot of that after the cached tokens, -1 where there are none; [rows] the
  // slot that the one after the row goes to, each one of its own, -1: nowhere. Null: of texts of which nothing is
  // cached, and none is kept.
  const int32_t *states_before{}, *states_after{};
  const void *const *adapters{};  // [sequences] of this model, null where a sequence has none; null: none has one
};

// Rows of a matrix as a file keeps them: `kind` is the number of their type in GGUF, or from 100 on of a folder's
// blocks, of those that src/kernels/formats/stored_rows.h names. Output i reads row order[i]; null: row i.
struct HeadstartRows {
  const void *data;
  const int32_t *order{};
  int64_t row_bytes;
  int32_t kind, rows;
};

// The noise of one row of tokens: see headstart.sampling.noise. The counter's first word is the token's.
struct HeadstartNoise {
  uint32_t key[2], counter[3];
};

// How a sequence draws tokens: each is the argmin of E / p, E the noise of its position, p proportional to
// exp(logit / temperature) where neither min-p nor top-k, nor top-p of what these leave, takes the token out.
struct HeadstartSampling {
  double temperature;
  double depth;          // how far below the highest logit min-p reaches; infinite: it is not asked for
  double top_p;          // 1: it is not asked for
  int32_t top_k;         // 0: it is not asked for
  HeadstartNoise noise;  // of position 0
};

// How a head's output rows are made for tokens that its vocabulary lacks: `map` times the target's own row.
struct HeadstartTextVocabulary {
  int32_t inputs;        // elements of the target's rows
  float bias;            // of the logits
  const uint8_t *lacks;  // [target's vocab] whether the head lacks a token
  const void *table{};   // [target's vocab][inputs] bf16
  const float *map{};    // [hidden][inputs]; where states that are fed back were not normed, with the weight of the
                         // last norm in it
  const HeadstartRows *stored{};  // instead, the target's own rows
  const float *factors{};         // [inputs] of their elements: the weight of a last norm that fed back states lack
};

// Tokens of a sequence's text that a head may say beyond its vocabulary. Those that a stretch says come behind them.
struct HeadstartTextTokens {
  const HeadstartTextVocabulary *vocabulary;
  int32_t count, room;  // the room for as many
  int32_t *tokens;      // [room] target ids
  void *rows;           // [room][hidden] bf16 output rows
};

// One sequence of a draft that grows.
struct HeadstartDrafted {
  int32_t cached, unread;    // true rows in the cache, and behind them those to be read first, at least one
  int32_t first{};           // place in the text of the first of them
  int32_t depth, nodes;      // at most
  int32_t pages;             // in page_table: room for all true rows, and for the width of every level but the last
  int32_t found{}, beams{};  // out: nodes written; rows of `logits` that the next level grows from
  int32_t root{};            // position of the last committed token, where there is `sampling`
  const HeadstartSampling *sampling{};  // ranks tokens by the noise that they will be drawn with; null: it does not
  const HeadstartTextTokens *text_tokens{};  // null: its text brings no tokens
  const int32_t *page_table;
  const int32_t *tokens;                // [unread]
  const float *features;                // [unread][features]
  int32_t *node_tokens, *node_parents;  // out, [nodes]: target ids; earlier nodes, -1 for the root
  float *node_scores;                   // out, [nodes]: log-probabilities of their paths
};

// How a head guesses by blocks: the last token and masks, behind the target's states.
struct HeadstartBlock {
  int32_t rows, first_slot;  // of a block; the first that guesses
  int32_t causal;            // rows see none behind them
  // What a token adds to the logits of the next one: `following`, a linear layer, times the token's row of `before`
  // [vocab][rank]. Null: nothing, so that all depths are guessed at once.
  void *following{};
  int32_t rank{}, tokens{};
  // Of a selector of paths (DFlash 2): the row of `before` is first multiplied, element by element, with what
  // `by_state`, a linear layer, makes of the state that says the guess; that is added to the `candidates` best tokens
  // of a slot alone, and no other is guessed. 0: there is none.
  int32_t candidates{};
  void *by_state{};
  const float *before{};
  const int32_t *draft_ids{};  // [tokens] rows of target ids there, -1 where the head lacks them
  // How sure it is of a guess, by its state [hidden] and, behind that, the token before [rank]; null: it does not say.
  const float *sureness{};
  float sureness_bias{};
  int32_t sureness_reads_token{};
};

// A draft of a head that grows from the likeliest paths, for several sequences side by side: level by level, or at once
// where the head guesses several tokens in one pass.
struct HeadstartDraft {
  int32_t sequences{};
  int32_t width;                // nodes of a level that get children, and children of each; with `slots` of a depth
  int32_t state_tap;            // which tap is fed back
  int32_t columns{};            // of a row of logits: vocab, and as many as the sequence with most text tokens has or,
                                // in a stretch, has room for
  float min_log_prob{};         // log-probability of a path; less likely nodes are left out
  float min_parent_log_prob{};  // of a path that is gone on from
  const int32_t *target_ids;    // [vocab], -1 where the target has no such token
  // [sequences * width][columns] scratch, the beams of each sequence behind one another; with `slots` as many for each.
  float *logits{};
  int32_t slots{};                // tokens that one pass guesses; 0: a pass for each level
  int32_t mask_token{};           // what rows behind the last true one read in place of one
  const float *mask_features{};   // [features] likewise
  const HeadstartBlock *block{};  // null: masks are rows like others, which follow the true ones
  HeadstartDrafted *drafted{};    // [sequences]
};

// A drafter that copies what followed the end of the text where that stood before. Options as SuffixOptions has them.
struct HeadstartSuffix {
  void *text;
  double factor, offset, min_probability;
  int32_t nodes, max_depth;
  int32_t learnt{};  // out: tokens of the stretch that the text holds
};

// A head that reads along with one sequence, and guesses. Those of a stretch's sequences have one model and draft
// alike.
struct HeadstartHead {
  void *model;
  const void *cache;
  const HeadstartDraft *draft;  // with scratch for all sequences of the stretch; `drafted` is not read
  int32_t asked;                // 0: it reads along only
  int32_t depth, nodes;         // of a draft at most
  int32_t cached, unread;       // as in HeadstartDrafted, but at least none; out: where it stands at the end
  int32_t first{};              // as in HeadstartDrafted
  int32_t pages;
  const int32_t *page_table;
  HeadstartTextTokens *text_tokens{};  // as in HeadstartDrafted
  int32_t learnt{};                    // out: tokens of the stretch that went into it
  int32_t held, room;     // rows of `features`, the last of which are those unread; rows that fit. Out: held
  float *features;        // [room][features], in and out
  const int32_t *tokens;  // [unread]
  int32_t bounds;
  const double *bound;  // [bounds] log-probabilities that part the grades of guesses, ascending
};

// Other weights of the same model, whose passes run over its cache.
struct HeadstartOwnWeights {
  void *model;
  int32_t depth;  // of a chain at most
};

// One of several drafters: a text, a head or other weights, or none of them.
struct HeadstartGuesser {
  HeadstartSuffix *suffix{};
  HeadstartHead *head{};
  HeadstartOwnWeights *own{};
  const double *rates;     // [grade, with what the other says in its place] how often its guesses hold
  int32_t judged{}, room;  // out: guesses that were judged; how many fit
  int32_t *judgements;     // out, [room]: 2 * grade, and 1 where the guess held; under a cut rule grades as above
};

// What decides how many guesses are verified, and when rounds end because they have not paid.
struct HeadstartCutRule {
  int32_t passes;
  const double *pass_seconds;  // [passes] of a pass that verifies 0, 1, ... guesses
  double other_seconds;        // of the rest of a round
  double plain_seconds;        // of a plain round
  double allowance;            // that may be lost beside plain rounds; two rounds are run whatever it is
  double least_gain;           // that guesses must promise over plain decoding, a factor
  double most_certain;         // chance of a guess
};

// Times of a round, in seconds, all sequences together; row_seconds: for each guess that is verified.
struct HeadstartRound {
  double draft_seconds[2];                          // of each guesser; 0 where nobody was asked
  double pass_seconds, walk_seconds, read_seconds;  // walk: what the target says after its rows; read: heads, along
  double other_seconds;
  double row_seconds;
  double experts;  // as in HeadstartPass; 0: the model has none
};

// What happened to one sequence in a round; of each guesser how many tokens more than with those before it alone were
// expected, how many nodes more were verified, and how many judgements it got.
struct HeadstartSpan {
  int32_t asked;                     // whether it had room for guesses
  int32_t drafted, accepted, token;  // nodes of its tree; nodes on the target's path; the token after them
  int32_t verified[2], judged[2];
  double gains[2];
};

// One sequence of a stretch. The stretch ends when it has said one of these tokens, or so many.
struct HeadstartStretched {
  int32_t cached, root;  // tokens in the cache, and the one after them
  int32_t room;          // tokens that the context holds behind the root
  int32_t nodes, depth;  // of a tree at most
  int32_t most_tokens, ends;
  const int32_t *end_tokens;
  const HeadstartSampling *sampling{};  // null: the best token is said
  HeadstartGuesser guessers[2]{};
  // Where layers keep states: the slot of that after the cached tokens; slots that rows may take, one for each row of a
  // round and one for each round, and perhaps some more for those after a block's last token.
  int32_t state{}, free_states{};
  const int32_t *state_slots{};
  // Out, by the row's place behind the cached tokens: the slot of the state after it, -1: it is not kept. Those after
  // the last row of each round, and after the rows of the last round. Room for as many as rows are reserved.
  int32_t *states_after{};
  const void *adapter{};  // of the target's passes; null: it has none
};

// Rounds of some sequences side by side, one after the other.
struct HeadstartStretch {
  int32_t sequences;
  HeadstartStretched *stretched;  // [sequences]
  int32_t blocks, pages_per_block;
  const int32_t *block_tables;  // [sequences][blocks], room for all rounds
  int32_t memory_blocks{};      // as in HeadstartPass, as the next two are
  const int32_t *memory_lengths{}, *memory_tables{};
  int32_t most_rounds;  // it ends after so many, or after so many seconds
  double most_seconds;
  int32_t taps;  // as in HeadstartPass
  const int32_t *tap_layers;
  const HeadstartCutRule *cut_rule{};  // null: all guesses of the one guesser are verified
  int32_t rounds{};                    // out: how many were finished
  int32_t at_fault{};                  // out: the guesser that failed, -1: the target's pass
  HeadstartRound *round;               // out, [most_rounds]
  HeadstartSpan *span;                 // out, [most_rounds][sequences]
  // Out, [most_rounds][sequences][nodes]: the trees, their grades (0 under a cut rule); nodes on the target's path.
  int32_t nodes;
  int32_t *node_tokens, *node_parents, *node_grades, *path;
  double *node_chances;  // to be accepted, the parent given; -1: the drafter says none
};

// Whether this library can run here (asks the system for the matrix unit where it needs one).
int headstart_enable();

// `layers` [layers]. `forms` [matrices][7]: of each layer 8, in the order of headstart_set_linear; the output head's;
// of experts [layers][experts][2], in the order of headstart_set_expert; of what makes inputs of layers; of what
// spreads and merges streams; and of what fuses features, where it is a head. 0: there is no such matrix; where weights
// are in blocks, 4 or 8 bits of a level, 10 for blocks of 16 inputs with levels of 8, 16 for a matrix in bf16; or 64
// and the number of a type (src/kernels/formats/stored_rows.h) for a file's own blocks (src/kernels/formats/stored/),
// which the parts of a matrix (queries, keys, values; gates, ups) may have of several types, gates and ups of one. Null
// when memory is short.
void *headstart_create(const HeadstartShape *shape, const HeadstartLayer *layers, const uint8_t *forms);
// Bytes [3] that such a model takes: layers, output head, what screens the head.
void headstart_packed_bytes(const HeadstartShape *shape, const HeadstartLayer *layers, const uint8_t *forms,
                            int64_t *bytes);
void headstart_destroy(void *model);
// Norms: 0 attention, 1 mlp, 2 q, 3 k (of latent attention those of the small states), 4 attention post, 5 mlp post, 6
// cross attention, and of the stream after 7 attention, 8 cross attention, 9 mlp were added to it, 10 v,
// 11 of what it makes of its input; of experts beside an MLP 12 of what the MLP gives, 13 of what the experts read, 14
// of what they give, 15 of what the router reads, 16 of what the second path gives, 17 of what streams are routed by,
// 18 of an indexer's keys, 19 of compressed keys; layer -1: 0 final, 1 of a head's features, 2 of what the first layer
// reads, 3 of each input of the layers, from 4 on those of the parts that true features are cut into. `bias` may be
// null.
void headstart_set_norm(void *model, int layer, int which, const float *weight, const float *bias, int size);
// Linears: 0 qkv, or what a mixer with a state reads, 1 output, 2 up, 3 down, of cross attention 4 queries, 5 output,
// of compressed keys 4 what lowers groups of heads, 5 queries from
// their small state, of latent attention instead 4 what takes queries to the states' space, 5 what takes values from
// there, head by head, 6 queries from their own small state, 7 the gate, or instead 4 the gate, or the delta rule's
// rates, in float32 whatever the forms, 5 its gates and 6 its steps from what they are made of, or instead 4 what opens
// its input, 5 what takes it to the stream, and 6, 7 the second path, or of a block head instead 4 what changes the
// convolutions around attention, 5 those around the MLP; layer -1: 0 output head, 1 what fuses features, 2 what makes
// inputs of layers of embeddings. The parts stand one below the other; nothing of them is kept.
void headstart_set_linear(void *model, int layer, int which, const HeadstartRows *parts, int count, const float *bias);
// One expert's matrices: 0 up (gates first), 1 down. The router [experts][hidden], and one row more where the shared
// expert, whose matrices are the layer's own, has a gate; `correction` [experts] or null.
void headstart_set_expert(void *model, int layer, int expert, int which, const HeadstartRows *parts, int count,
                          const float *bias);
void headstart_set_router(void *model, int layer, const HeadstartRows *parts, int count, const float *bias,
                          const float *correction);
// Scores [heads] that no key has, copied.
void headstart_set_sinks(void *model, int layer, const float *sinks);
// A layer's constants, copied, by number: 0 kernel of a convolution [length][channels], 1 its bias, 2 bias of steps, 3
// decay, 4 skip, 5 norm of what a state gives, 6 [1] factor of all that the layer gives, 7 [experts] factors of scores;
// of streams 8 router [streams][hidden, padded], 9 what predicts [streams * streams][streams], 10 what corrects
// [streams][streams], 11 [hidden] factors of the first one where inputs read it; 12 of xielu [4]; of a block head's
// convolutions before and after a part [2][taps][hidden] 13 attention's, 14 the MLP's; of hyper-connections what all
// streams tell [told][count][hidden, padded] 15 the mixer, 17 the channel part, and bases, then scales, 16 and 18;
// 19, 20 what is added to weights of compressed keys, and of their indexer's, by place [ratio][given]; 21 experts of
// each token [tokens][used]; layer -1: 0, 1 the same of what they become at last, where that is learnt.
void headstart_set_constant(void *model, int layer, int which, const float *values, int count);
// What packing has done to the matrices, as many as `forms`, [3] each: sums of squares of what was lost, of what bf16
// would lose, and of the weights. All 0 where they are not in 4 or 8 bits.
void headstart_losses(const void *model, double *losses);
// What distance adds to a layer's scores [heads][distances], copied; further keys are at the last one.
void headstart_set_distance_bias(void *model, int layer, const float *table, int distances);
// What each token of distance takes off the scores of all layers: slopes [heads] times `scale`, see
// headstart.models.config.Alibi.
void headstart_set_alibi(void *model, const float *slopes, float scale, int coarse);
// Borrowed tables: cosines and sines [positions][dimensions / 2].
void headstart_set_rope(void *model, int index, const float *cosines, const float *sines, int positions,
                        int dimensions);
// Embedding [tokens][hidden], borrowed or, where `keeps` is 1, copied; 2: it is the output head, which is in a file's
// own blocks, and `table` is not read; learned positions [positions][hidden] or null.
void headstart_set_embedding(void *model, const HeadstartRows *table, int keeps, const float *learned, int positions);
// The embedding of another model in place of one of its own; it lives as long as this model.
void headstart_share_embedding(void *model, void *host);
// The table of inputs of layers [tokens][count * size], borrowed.
void headstart_set_inputs_table(void *model, const HeadstartRows *table);
// What the first layer reads [count][hidden]: embeddings of tokens, those of `given` rows replaced by `values`, and
// learned positions.
void headstart_first_inputs(const void *model, const int32_t *tokens, const int32_t *positions, int count,
                            const int32_t *given, int given_count, const float *values, float *inputs);
// Writes all weights to an open file, from byte `start` on, and reads them again. Null on success, else what is wrong;
// a model that was read in vain is of no use.
const char *headstart_save(void *model, int fd, int64_t start);
const char *headstart_restore(void *model, int fd, int64_t start);
int64_t headstart_bytes(const void *model);

// An adapter of a model, which outlives it: so far it changes nothing. Null when memory is short.
void *headstart_adapter_create(const void *model);
void headstart_adapter_destroy(void *adapter);
// The change of one of a layer's first four matrices or of its attention's gate, copied: `down` [ranks][inputs] and
// `up` [outputs][ranks], whose product is added to it. Null on success.
const char *headstart_adapter_set(void *adapter, int layer, int which, int ranks, const float *down, const float *up);

// `pages` pages of 32 keys and `states` slots of states, zero-filled; null when memory is short. `in_bytes`: keys and
// values in 8 bits; else in the cells that attention computes with.
void *headstart_cache_create(const void *model, int pages, int states, int in_bytes);
void headstart_cache_destroy(void *cache);
// Pages alone, and bytes of all slots, with a blank one.
void *headstart_cache_data(const void *cache);
int64_t headstart_cache_bytes(const void *cache);
int64_t headstart_cache_state_bytes(const void *cache);
void headstart_cache_move(const void *cache, const int32_t *source, const int32_t *target, int count);
void headstart_cache_copy(const void *cache, const int32_t *source, const int32_t *target, int count);
// Bytes of a page over all layers, and of a state.
int64_t headstart_cache_page_size(const void *cache);
int64_t headstart_cache_slot_size(const void *cache);
// Pages [first, first + count), and behind them the state in a slot (-1: none), to and from memory of their size. A
// state that passes have not made whole yet cannot be read: 0.
int headstart_cache_read(const void *cache, int first, int count, int slot, void *to);
void headstart_cache_write(const void *cache, int first, int count, int slot, const void *from);
// Writes one layer's encoder memory, keys and values [positions][2][kv_heads][head_dim], to these blocks, in order.
void headstart_write_memory(const void *model, const void *cache, int layer, const int32_t *blocks, int pages_per_block,
                            int positions, const float *keys_values);

// Null on success, else what is wrong with the pass, as a sentence. Nothing has been written then.
const char *headstart_forward(void *model, const void *cache, const HeadstartPass *pass);

// Grows the levels `first` to `last` of a draft, and runs the pass whose logits the next level grows from; level 0
// begins a draft: it reads the true rows. Between two calls the caller may change the logits, nothing else. What is
// written at the end are the best nodes so far. Null on success, else what is wrong, as a sentence; then the draft is
// to begin anew.
const char *headstart_draft(void *model, const void *cache, HeadstartDraft *draft, int first, int last);

// An empty text; bounds of the grades of guesses by what matched and by relative frequency. Null when memory is short.
void *headstart_text_create(int max_length, const double *matches, int match_bounds, const double *ratios,
                            int ratio_bounds);
void headstart_text_destroy(void *text);
// What follows is a text of its own.
void headstart_text_start(void *text);
// 0, or 1 where memory is short: the text is of no use then.
int headstart_text_extend(void *text, const int32_t *tokens, int count);
// Guesses of `text` come from `other`, too, which outlives it and must not grow meanwhile; 1 where memory is short.
int headstart_text_consult(void *text, const void *other);
// Guesses after the text's end and a path [steps] behind it: how many, -1 where memory is short; tokens, parents and
// grades [nodes].
int headstart_text_guess(const HeadstartSuffix *suffix, const int32_t *path, int steps, int nodes, int depth,
                         int32_t *tokens, int32_t *parents, int32_t *grades);

// Null on success, else what is wrong, as a sentence; then nothing of the stretch counts, and texts and heads that took
// part are of no use.
const char *headstart_stretch(void *model, const void *cache, HeadstartStretch *stretch);

// The 32-bit noise words of tokens 0..count - 1, or of `ids`, where given.
void headstart_noise_words(const HeadstartNoise *noise, const int64_t *ids, int64_t count, uint32_t *words);
// Tokens, ascending, among which the argmin of E / p is: E the row's noise, p proportional to exp(logit / temperature)
// where logit >= floor. 0 where that cannot be told in short: logits without a finite highest, or more than `capacity`.
int headstart_contenders(const float *logits, int64_t count, double temperature, double floor,
                         const HeadstartNoise *noise, int64_t *ids, int capacity);
// The rank-th highest logit, from 1.
float headstart_ranked(const float *logits, int64_t count, int64_t rank);
// The sum of exp((logit - peak) / temperature), to within 1e-5 of itself.
double headstart_mass(const float *logits, int64_t count, float peak, double temperature);
// A linear layer by itself: y[rows][outputs] = x[rows][inputs] times the weights, plus the bias. Parts as in
// headstart_set_linear, `bits`: a form as in headstart_create.
void *headstart_linear_create(int precision, int threads, int outputs, int inputs, const HeadstartRows *parts,
                              int count, const float *bias, int bits);
void headstart_linear_destroy(void *linear);
int64_t headstart_linear_bytes(const void *linear);
const char *headstart_linear_run(void *linear, int rows, const float *x, float *y);

// The codebook of one of GGUF's types, by number: [point][weight] which of its magnitudes, in ascending order, a weight
// has. Rows of such a type may be given after this alone.
void headstart_set_codebook(int kind, const uint8_t *places);

// A matrix [parts' rows][inputs] as floats.
void headstart_read_rows(const HeadstartRows *parts, int count, int inputs, int threads, float *to);

// Output rows [count][hidden] bf16 of a head for tokens that it lacks.
void headstart_text_rows(const HeadstartTextVocabulary *vocabulary, int hidden, int threads, const int32_t *tokens,
                         int count, void *rows);

// The `ranks` largest of each row of `logits` [rows][size], the largest first, the first of equals first: ids, and
// log-probabilities. Missing ones have id 0 and log-probability -inf.
void headstart_best(const float *logits, int rows, int size, int ranks, float *log_probs, int32_t *ids);

// Seconds one read of the weights takes with the team of a pass: the floor that a pass is measured against.
double headstart_read_seconds(const void *model);
}
