-- Sixteen Keras networks learn to read handwritten digits inside PostgreSQL, by model hopping.
--
-- `make demo` loads table demo.digits (1,797 images of 8 x 8 pixels) and runs this file. To run it again, as often as
-- you like: `make psql`, then `\i demo/digits.sql`. All its tables are in schema demo.

\set QUIET on
\set ON_ERROR_STOP on
\set SHOW_CONTEXT never
\pset pager off
\pset footer off
SET search_path = demo, public;
SET client_min_messages = warning;

\o /dev/null
DROP VIEW IF EXISTS digits_train, digits_valid, digits_held_out;
DROP TABLE IF EXISTS digits_packed, digits_packed_summary, digits_valid_packed, digits_valid_packed_summary,
    networks, configs, configs_summary, models, models_info, models_summary, predictions;
SELECT madlib_mop.drop_run(run_id) FROM madlib_mop.run WHERE model_output_table = 'demo.models';


\echo '== 1. Which images are trained on, which choose the best network, which are kept for the end'

CREATE VIEW digits_train AS SELECT * FROM digits WHERE id % 9 < 7;
CREATE VIEW digits_valid AS SELECT * FROM digits WHERE id % 9 = 7;
CREATE VIEW digits_held_out AS SELECT * FROM digits WHERE id % 9 = 8;

\o
SELECT (SELECT count(*) FROM digits_train) AS training, (SELECT count(*) FROM digits_valid) AS validation,
       (SELECT count(*) FROM digits_held_out) AS held_out;
\o /dev/null


\echo '== 2. Packing: rows become tensors on three segments'

SET madlib_mop.segments = 3;
SELECT madlib.training_preprocessor_dl('digits_train', 'digits_packed', 'digit', 'pixels',
                                       normalizing_const => 16, seed => 1);
SELECT madlib.validation_preprocessor_dl('digits_valid', 'digits_valid_packed', 'digit', 'pixels', 'digits_packed');

\o
SELECT __dist_key__ AS segment, sum(pixels_shape[1]) AS rows FROM digits_packed GROUP BY 1 ORDER BY 1;
\o /dev/null


\echo '== 3. Configurations: 2 architectures x 2 strengths of L2 x 2 learning rates x 2 batch sizes'

-- The architectures are what model.to_json() writes in Keras, less the parts that are defaults.
WITH designs (name, model_arch) AS (VALUES ('perceptron', $json$
    {"module": "keras", "class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8, 1]}},
        {"class_name": "Flatten", "config": {}},
        {"class_name": "Dense", "config": {"units": 64, "activation": "relu",
            "kernel_regularizer": {"class_name": "L2", "config": {"l2": @L2@}}}},
        {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}]}}
$json$), ('convolutional', $json$
    {"module": "keras", "class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8, 1]}},
        {"class_name": "Conv2D", "config": {"filters": 24, "kernel_size": [3, 3], "activation": "relu",
            "kernel_regularizer": {"class_name": "L2", "config": {"l2": @L2@}}}},
        {"class_name": "MaxPooling2D", "config": {"pool_size": [2, 2]}},
        {"class_name": "Flatten", "config": {}},
        {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}]}}
$json$))
SELECT madlib.load_keras_model('networks', replace(model_arch, '@L2@', l2)::json, name => name, description => l2)
FROM designs, unnest(ARRAY['0.0001', '0.001']) AS l2 ORDER BY name, l2;

SELECT madlib.generate_model_configs('networks', 'configs', ARRAY[1, 2, 3, 4],
    $$ {'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.003, 0.01]}]} $$,
    $$ {'batch_size': [16, 64], 'epochs': [1]} $$);


\echo '== 4. Training: in each iteration every network visits every segment once'

SET client_min_messages = notice;
SELECT madlib.madlib_keras_fit_multiple_model('digits_packed', 'models', 'configs', 12,
    validation_table => 'digits_valid_packed', metrics_compute_frequency => 1, seed => 1, schedule => 'rotation');
RESET client_min_messages;

\o
SELECT max(run_id) AS run_id FROM madlib_mop.run WHERE model_output_table = 'demo.models' \gset


\echo '\n== 5. The leaderboard: the highest accuracy on the validation images comes first'

SELECT rank, mst_key, n.name AS network, n.description AS l2,
       substring(compile_params, 'lr=([0-9.e-]+)') AS rate, substring(fit_params, 'batch_size=(\d+)') AS batch,
       round(validation_loss::numeric, 4) AS loss, round(validation_metric::numeric, 4) AS accuracy,
       round(training_metric::numeric, 4) AS training_accuracy
FROM madlib_mop.leaderboard JOIN networks AS n USING (model_id) WHERE run_id = :run_id ORDER BY rank;


\echo '== 6. The schedule: seconds of all visits, and the shortest time that any schedule of these visits could take'

SELECT count(*) AS visits,
       round(r.makespan_s::numeric, 1) AS makespan_s, round(r.lower_bound_s::numeric, 1) AS lower_bound_s,
       round((r.makespan_s / r.lower_bound_s)::numeric, 2) AS ratio, round(r.idle_share::numeric, 2) AS idle_share
FROM madlib_mop.run AS r JOIN madlib_mop.visit USING (run_id) WHERE run_id = :run_id GROUP BY r.run_id;


\echo '== 7. Predictions of the best network for the held-out images, wrong ones first'

SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = :run_id AND rank = 1 \gset
\o /dev/null
SELECT madlib.madlib_keras_predict('models', 'digits_held_out', 'id', 'pixels', 'predictions', 'response',
                                   mst_key => :mst_key);
\o
SELECT id, digit AS truth, class_value AS prediction, round(prob::numeric, 4) AS probability
FROM digits_held_out JOIN predictions USING (id) ORDER BY digit::text = class_value, id LIMIT 10;

SELECT count(*) AS held_out, count(*) FILTER (WHERE digit::text = class_value) AS read_right,
       round(avg((digit::text = class_value)::integer), 4) AS accuracy
FROM digits_held_out JOIN predictions USING (id);

\echo 'All of this is plain SQL: demo/digits.sql. To run it again or look around: make psql, then \\i demo/digits.sql'
\set QUIET off
