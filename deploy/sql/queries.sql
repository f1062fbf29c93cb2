-- Questions to a prediction table, for any SQL client. Here: `predictions`, which a job made of the table `photos`
-- (path, content, album) with sink.table: predictions.
--
--   beeline -u jdbc:hive2://127.0.0.1:10000 -f deploy/sql/queries.sql

-- How many images are there of each label?
SELECT label, count(*) AS images
FROM predictions
WHERE error_code IS NULL
GROUP BY label
ORDER BY images DESC, label;

-- Which predictions is the model least sure of? A person should look at them.
SELECT path, label, round(confidence, 3) AS confidence, top_k[1].label AS second
FROM predictions
WHERE confidence < 0.5
ORDER BY predictions.confidence, path
LIMIT 100;

-- What failed, how often, and where is an example?
SELECT error_stage, error_code, count(*) AS images, min(path) AS example
FROM predictions
WHERE error_code IS NOT NULL
GROUP BY error_stage, error_code
ORDER BY images DESC, error_code;

-- What is in each album? Predictions joined with the table that they were made of.
SELECT album, label, count(*) AS images, round(avg(confidence), 3) AS mean_confidence
FROM predictions
JOIN photos USING (path)
WHERE error_code IS NULL
GROUP BY album, label
ORDER BY album, images DESC, label;
