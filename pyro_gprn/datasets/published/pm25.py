"""Fine dust in the air of Salt Lake City, 2 to 7 July 2018."""

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
# Column 0 is the time, column 1 is empty, and the columns from 102 on are of another kind of sensor
_SENSORS = slice(2, 102)


def load_pm25() -> Dataset:
    """PM2.5 in µg/m³ at 100 PurpleAir sensors, ``(288, 10, 10)``, every half hour from 2 to 7 July 2018.

    The only input is the time in hours since 2 July, 00:00 UTC, ``(288, 1)``. The 100 sensors are arranged as 10×10, as
    in the paper, row by row in the order of the file; sensors that are close in this arrangement need not be close in
    the city. 838 values (2.9 %), of 11 sensors, are missing and are NaN. :meth:`~pyro_gprn.datasets.Dataset.split`
    returns the paper's split: 256 random times for training and the other 32 for testing.

    The data have no licence. Use them for yourself only.

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
