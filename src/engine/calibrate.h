/* How large the inputs of an encoder's layers become, column by column: for quantising by rows. */
#ifndef LT_ENGINE_CALIBRATE_H
#define LT_ENGINE_CALIBRATE_H

#include "engine/model.h"

/* largest[plan.n_trace][hidden]: the greatest |x| of every hidden state that a trace has, over some sequences of random ids. It
 * needs no texts and no tokenizer, and is as good: columns that are large are so for whatever tokens (MiniLM's 159 texts have a
 * mean cosine of 0.9989 with factors from random ids and from English texts alike). Repeatable. */
lattice_status lt_calibrate(lattice_model *model, float *largest, lattice_error *err);

#endif
