"""Fine dust over Salt Lake City, 2 to 7 July 2018."""

from __future__ import annotations

import csv
import math
from datetime import datetime, timedelta

import torch

from pyro_gprn.datasets.published.fetch import RemoteFile, fetch
from pyro_gprn.datasets.record import Dataset

MEASUREMENTS = RemoteFile(
    "pm25/queriedData.csv",
    "https://raw.githubusercontent.com/wayXing/AQ-GP_Project/82ae8dc4c083cd902d5a48badac804ffa843e55b/python/queriedData.csv",
    "sha256:8b14a9eb6a23a92553107b219703e42db69db1fadb9a06dd2ff8e7b40f354603",
)
_HEADER_ROWS = 4  # sensor, model, latitude, longitude
_SENSORS = slice(2, 102)  # after the time and an empty column; the columns beyond are of another kind of sensor


def load_pm25() -> Dataset:
    """PM2.5 (µg/m³) at 100 PurpleAir sensors, ``(288, 10, 10)``, every half hour of 2 to 7 July 2018.

    The one input is the time in hours since 2 July, 00:00 UTC, ``(288, 1)``. The sensors fill the 10×10 in the order of
    the file, as the paper folds them; neighbours in it are no neighbours in the city. 838 values are missing (2.9 %),
    in 11 sensors, and are NaN. :meth:`~pyro_gprn.datasets.Dataset.split` gives the paper's split, 256 random times
    for training and the other 32 for test.

    No licence is given: for your own use.

    >>> load_pm25()  # doctest: +SKIP
    Dataset 'pm25': X (288, 1), Y (288, 10, 10), 838 missing
    """
    with fetch(MEASUREMENTS).open(newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    sensors, rows = table[0][_SENSORS], table[_HEADER_ROWS:]
    times = [datetime.strptime(row[0], "%Y-%m-%dT%H:%M:%SZ") for row in rows]
    X = torch.tensor([[(time - times[0]) / timedelta(hours=1)] for time in times], dtype=torch.float64)
    values = [[float(cell) if cell else math.nan for cell in row[_SENSORS]] for row in rows]
    Y = torch.tensor(values, dtype=torch.float64).reshape(-1, 10, 10)
    return Dataset("pm25", X, Y, ("hours",), tuple(sensors), (256, 32))
