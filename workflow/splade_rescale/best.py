"""The best scale k of each backbone on each data set."""

import pandas as pd


def best_scales(table: pd.DataFrame, headline: dict[str, str]) -> pd.DataFrame:
    """One row per arm, data set and backbone, in the order of the table.

    The best k has the highest headline measure (mean over seeds) of those whose runs all ended
    `ok`; of equal ones the smallest. A collapsed run may keep a score by chance, and is never the
    best.

    Args:
        table: the results table.
        headline: data set -> measure.

    Returns:
        arm, dataset, measure, backbone; best_k (text, empty where no k has only runs that ended
        ok), best_score; k1_score and k1_status, of k = 1 (missing and empty where it was not
        run); gain (best_score - k1_score); p_holm, of the best k against k = 1, where there is one
        seed; norm (mean row norm at k = 1), best_norm (after the division).
    """
    rows = []
    trained = table[table["seed"].notna()]
    for (arm, dataset, backbone), cells in trained.groupby(
        ["arm", "dataset", "backbone"], sort=False, dropna=False
    ):
        measure = headline[dataset]
        scales = cells.groupby("k", sort=False).agg(
            score=(measure, "mean"),
            status=("status", lambda values: ", ".join(dict.fromkeys(values))),
            p_holm=("p_holm_vs_k1", lambda values: values.iloc[0] if len(values) == 1 else None),
            k_used=("k_used", "mean"),
            norm=("norm_after", "mean"),
        )
        row = {
            "arm": "" if pd.isna(arm) else arm,
            "dataset": dataset,
            "measure": measure,
            "backbone": backbone,
            "best_k": "",
            "k1_status": "",
            "norm": cells["norm_before"].iloc[0],
        }
        if "1" in scales.index:
            row |= {"k1_score": scales.loc["1", "score"], "k1_status": scales.loc["1", "status"]}
        fine = scales[scales["status"] == "ok"].sort_values("k_used", kind="stable")
        if len(fine):
            best = fine["score"].idxmax()
            row |= {
                "best_k": best,
                "best_score": fine.loc[best, "score"],
                "p_holm": fine.loc[best, "p_holm"],
                "best_norm": fine.loc[best, "norm"],
            }
            if "k1_score" in row:
                row["gain"] = row["best_score"] - row["k1_score"]
        rows.append(row)
    columns = ["arm", "dataset", "measure", "backbone", "norm", "k1_score", "k1_status"]
    columns += ["best_k", "best_score", "gain", "p_holm", "best_norm"]
    numbers = ["norm", "k1_score", "best_score", "gain", "p_holm", "best_norm"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, "float64"))
